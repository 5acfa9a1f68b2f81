// One communicator of a library: made, used, ended or given up, with every failure in our terms.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "bootstrap/liveness.h"
#include "transport/xccl/caller.h"
#include "transport/xccl/device.h"
#include "transport/xccl/library.h"

namespace perseus::xccl {

struct Options {
  std::chrono::milliseconds start_timeout{60'000};  // for all ranks to come to a new communicator
  // Verbs return when their work is queued on the device's stream. Whoever waits for it calls check() meanwhile, and
  // once more when it is done: an abort, too, lets the stream come to its end.
  bool queue_only = false;
};

// Used by one thread at a time. Where a peer is lost, or the library reports an error, the communicator is aborted, so
// that what waits in it ends, on a stream too. A library that has no such way (Traits::blocking) is called on a thread
// of its own, which is left behind then. Members throw Error.
class Communicator {
 public:
  // Collective over `size` ranks, all of which have the same `id`.
  Communicator(std::shared_ptr<const Library> library, std::shared_ptr<Device> device, const UniqueId& id, int rank,
               int size, Liveness& liveness, const Options& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Library& library() const { return *library_; }
  Device& device() const { return *device_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Calls one of the library's functions: call(functions, comm) → its code. `function` is its name without the prefix.
  // `call` holds what it needs by value: it may be left behind.
  template <class Call>
  void run(const char* function, Call call) {
    run_call(function, [library = library_, comm = handle_->comm, call] { return call(library->call, comm); });
  }

  // Between the two, calls are queued as one; nothing where the library has no groups.
  void group_start();
  void group_end();

  // Multiplies every contribution by `factor` and adds. Kept for the next time. `scalar` is `factor` as a `type`.
  Op pre_mul_sum(DataType type, double factor, void* scalar);

  // Ends what register_memory() of the transport began; whatever happens is of no interest any more.
  void deregister(void* handle);

  // Throws what has gone wrong with what is under way, after aborting it. Cheap enough for a wait loop.
  void check();

  // Until the device has done all. Does nothing with Options::queue_only.
  void wait();

  // A call was left behind, and may still use the memory it was given.
  bool left_behind() const { return caller_ && caller_->given_up(); }

  // Nothing goes on: who waits in a call of this communicator comes back with an error, where the library can do so.
  void abort() { handle_->abort(*library_); }

 private:
  // Shared with Liveness's wake, which may come on another thread at any time.
  struct Handle {
    std::mutex mutex;  // held while the library ends it
    Comm comm = nullptr;
    bool aborted = false;  // guarded by mutex

    void abort(const Library& library);
    bool is_aborted() {
      const std::scoped_lock lock(mutex);
      return aborted;
    }
  };

  void start(const UniqueId& id, std::chrono::milliseconds limit);
  void run_call(const char* function, std::function<int()> call);

  std::shared_ptr<const Library> library_;
  std::shared_ptr<Device> device_;
  int rank_, size_;
  Liveness& liveness_;
  bool queue_only_;
  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
  std::unique_ptr<Caller> caller_;  // null where no call blocks
  std::map<std::pair<DataType, double>, Op> own_ops_;
};

}  // namespace perseus::xccl
