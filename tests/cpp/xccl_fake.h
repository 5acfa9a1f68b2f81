// A fake library shaped like NCCL for host memory, whose ranks are threads of this process. It blocks like oneCCL, or
// queues work on streams like NCCL.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "transport/fabric.h"
#include "transport/xccl/device.h"
#include "transport/xccl/libraries/library.h"
#include "transport/xccl/transport.h"

namespace perseus::testing {

// Returns a table of functions as the search for a library would.
std::shared_ptr<xccl::Library> blocking_library();
// `background_calls`: see Traits.
std::shared_ptr<xccl::Library> queued_library(bool background_calls = false);

// Records the calls of the fake library and controls its results. All communicators share it, and each test makes a new
// one.
struct FakeOrders {
  std::atomic<int> fail_all_reduce{0};  // the code that AllReduce returns on fail_rank
  std::atomic<int> fail_init{0};        // the code that CommInitRank returns on fail_rank
  std::atomic<int> fail_send{0};        // the code that Send returns on fail_rank
  std::atomic<int> fail_rank{0};
  std::atomic<int> async_error{0};  // the result of CommGetAsyncError
  std::atomic<int> aborted{0}, revoked{0}, destroyed{0}, own_ops{0}, registered{0}, deregistered{0};

  // Aborts in a group are executed at the same time, as from NCCL 2.22 on. Set it before a library is made.
  bool groups_aborts = false;
  // The library can revoke communicators, as from NCCL 2.29 on. Set it before a library is made.
  bool revokes = false;
  // AllReduce blocks until the communicator is revoked or aborted, as if it connected to a peer that does not answer.
  std::atomic<bool> all_reduce_waits_for_peers{false};
  std::function<void(int rank)> in_all_reduce;  // runs inside of AllReduce

  // Returns the current device of this thread, on which a new communicator is.
  std::function<int()> current_device;
  // Executes queued work if streams are not FakeStreams.
  std::function<void(xccl::Stream, std::function<void()>)> enqueue;

  FakeOrders();
  ~FakeOrders();  // calls that still wait return with an error
};

// Returns true if this thread has begun a group of calls and not ended it.
bool fake_group_is_open();

// Runs work in order on its own thread.
class FakeStream {
 public:
  FakeStream();
  ~FakeStream();
  void add(std::function<void()> work);
  bool idle();

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool closed_ = false;
  std::thread thread_;
};

// Host memory that is accessed in the order of a stream, like a GPU's.
class FakeDevice final : public xccl::Device {
 public:
  // `reduces` is the result of Device::reduces().
  explicit FakeDevice(bool reduces) : reduces_(reduces) {}

  std::string name() const override { return "fake GPU"; }
  void* stream() const override { return &stream_; }
  void* allocate(std::size_t bytes) override { return host_.allocate(bytes); }
  void release(void* memory) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void pack(const Reduction& reduction, Pieces from, void* to) override;
  void unpack(const Reduction& reduction, const void* from, Pieces to) override;
  bool reduces() const override { return reduces_; }
  void reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) override;
  bool done() override { return stream_.idle(); }

 private:
  bool reduces_;
  mutable xccl::HostDevice host_;
  mutable FakeStream stream_;
};

// Makes fabrics of ranks that are threads, whose transports are XcclTransports. They have no control channel.
std::vector<std::unique_ptr<Fabric>> make_library_fabrics(int ranks,
                                                          const std::shared_ptr<const xccl::Library>& library,
                                                          Liveness& liveness);

}  // namespace perseus::testing
