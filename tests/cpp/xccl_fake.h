// A library shaped like NCCL whose ranks are threads of this process, on host memory: blocking like oneCCL, or queued
// on streams like NCCL.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "transport/fabric.h"
#include "transport/xccl/host_device.h"
#include "transport/xccl/library.h"
#include "transport/xccl/transport.h"

namespace perseus::testing {

// A table as dlopen would fill it.
std::shared_ptr<xccl::Library> blocking_library();
std::shared_ptr<xccl::Library> queued_library();

// What the fake was asked, and what it is to answer. One for all its communicators, set anew by each test.
struct FakeOrders {
  std::atomic<int> fail_all_reduce{0};  // the code that AllReduce returns on fail_rank
  std::atomic<int> fail_init{0};        // the same of CommInitRank
  std::atomic<int> fail_rank{0};
  std::atomic<int> async_error{0};  // what CommGetAsyncError tells
  std::atomic<int> aborted{0}, destroyed{0}, own_ops{0}, registered{0}, deregistered{0};

  // Takes what is queued, where streams are not FakeStreams.
  std::function<void(xccl::Stream, std::function<void()>)> enqueue;

  FakeOrders();
  ~FakeOrders();  // calls that still wait come back with an error
};

// Runs what it is given in order, on a thread of its own.
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

// Host memory behind a stream, as a GPU's is.
class FakeDevice final : public xccl::Device {
 public:
  // `reduces`: as Device::reduces().
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

// Fabrics of ranks that are threads, whose transports are XcclTransports. They have no control channel.
std::vector<std::unique_ptr<Fabric>> make_library_fabrics(int ranks, bool queued, Liveness& liveness);

}  // namespace perseus::testing
