// Wraps one communicator of a library shaped like NCCL, and turns its failures into Error.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "bootstrap/watch/liveness.h"
#include "transport/xccl/abort_group.h"
#include "transport/xccl/caller.h"
#include "transport/xccl/device.h"
#include "transport/xccl/libraries/library.h"

namespace perseus::xccl {

struct Options {
  std::chrono::milliseconds start_timeout{60'000};  // limit for all ranks to join a new communicator
  // Verbs return when their work is queued on the device stream. A thread that waits for the work calls check()
  // meanwhile and once more at its end, because an abort also completes the stream.
  bool queue_only = false;
  std::shared_ptr<AbortGroup> abort_group = {};  // null: the communicator has its own
};

// A communicator of the library. One thread at a time uses it: the one that holds lock(). If a peer is lost or the
// library reports an error, all communicators of the abort group are aborted, which ends the work that waits in them. A
// library that cannot abort (Traits::blocking) is called on its own thread, which is then abandoned. Members throw
// Error.
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

  // Any thread may release registered memory, but a library allows one call of a communicator at a time.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(in_use_); }

  // Calls one of the library's functions by call(functions, comm), which returns the function's code. `function` is its
  // name without the prefix. `call` holds everything by value, because it may be abandoned.
  template <class Call>
  void run(const char* function, Call call) {
    run_call(function, [library = library_, comm = handle_->comm(), call] { return call(library->call, comm); });
  }

  // The calls until end() are queued as one. If end() is not reached, the destructor closes the thread's group, which
  // would otherwise take in all later calls of the thread. Does nothing if the library has no groups.
  class Group {
   public:
    explicit Group(Communicator& through);
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    void end();

   private:
    Communicator& through_;
    CommHandle::Call call_;  // the library uses the communicator until the end
    bool open_ = false;
  };

  // Returns an operation that multiplies every contribution by `factor` and adds, and keeps it for later calls.
  // `scalar` is `factor` as a `type`.
  Op pre_mul_sum(DataType type, double factor, void* scalar);

  // Ends a registration of XcclTransport::register_memory() after the queued work, and ignores failures. Takes lock().
  void deregister(void* registered);

  // Throws the failure of work in progress, after aborting it. Cheap enough for a wait loop.
  void check();

  // Blocks until the device has completed all work. Does nothing with Options::queue_only.
  void wait();

  // Returns true if a call was abandoned, which may still use its memory.
  bool has_abandoned_call() const { return caller_ && caller_->abandoned(); }

  // Closes this communicator and all others of its abort group, and aborts them if the library can: threads that wait
  // in one of its calls return with an error. Does not wait for the end of the abort. `why`: see AbortGroup.
  void abort(const std::string& why);

 private:
  void start(const UniqueId& id, std::chrono::milliseconds limit);
  int await_start(const std::function<void()>& poll);
  void run_call(const char* function, std::function<int()> call);
  void finish_call(const char* function, int code);
  void check_code(const char* function, int code);
  bool is_in_progress(const char* function);
  [[noreturn]] void throw_aborted() const;

  std::shared_ptr<const Library> library_;
  std::shared_ptr<Device> device_;
  int rank_, size_;
  std::mutex in_use_;
  Liveness& liveness_;
  bool queue_only_;
  std::shared_ptr<CommHandle> handle_;
  std::shared_ptr<AbortGroup> abort_group_;  // null if the library cannot abort
  std::unique_ptr<Caller> caller_;           // null if no call of the library blocks
  std::map<std::pair<DataType, double>, Op> own_ops_;
};

}  // namespace perseus::xccl
