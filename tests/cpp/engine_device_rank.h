// A rank with tensors on a fake device, and a framework's stream on which they are computed and read.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda_fake.h"
#include "device/cuda/cuda_device.h"
#include "engine/execute/on_device.h"
#include "engine/process_set_engine.h"
#include "engine_rank.h"

namespace perseus::testing {

// A device transport like NCCL, whose collectives run in the order of a stream. It uses a transport of host memory.
class StreamTransport final : public DeviceTransport {
 public:
  StreamTransport(FakeCuda& fake, Stream stream, Link link) : fake_(fake), stream_(stream), link_(std::move(link)) {}

  std::string_view name() const override { return "stream"; }
  int rank() const override { return link_.transport->rank(); }
  int size() const override { return link_.transport->size(); }
  bool carries(const Reduction& reduction) const override { return reduction.dtype != DType::int16; }
  Status check() override {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }
  void fail(Status status) {
    const std::scoped_lock lock(mutex_);
    failure_ = std::move(status);
  }
  std::shared_ptr<void> register_memory(void*, std::size_t) override { return nullptr; }
  void abort(const Status&) override {}

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override {
    enqueue([this, reduction, from = copy_of(in), to = copy_of(out)] {
      return link_.transport->allreduce(reduction, from, to);
    });
    return {};
  }
  Status broadcast(Pieces buffers, int root) override {
    enqueue([this, root, all = copy_of(buffers)] { return link_.transport->broadcast(all, root); });
    return {};
  }
  Status allgather(const void* in, void* out, Counts bytes) override {
    enqueue([=, this, each = copy_of(bytes)] { return link_.transport->allgather(in, out, each); });
    return {};
  }
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override {
    enqueue([=, this, sent = copy_of(send_bytes), received = copy_of(recv_bytes)] {
      return link_.transport->alltoall(in, sent, out, received);
    });
    return {};
  }
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override {
    enqueue([=, this, each = copy_of(counts)] { return link_.transport->reduce_scatter(reduction, in, out, each); });
    return {};
  }
  Status barrier() override { return unexpected(); }

 private:
  static std::vector<Piece> copy_of(Pieces pieces) { return {pieces.begin(), pieces.end()}; }
  static std::vector<std::int64_t> copy_of(Counts counts) { return {counts.begin(), counts.end()}; }
  static Status unexpected() { return {ErrorKind::transport, "not to be asked for"}; }
  template <typename Action>
  void enqueue(Action action) {
    fake_.enqueue(stream_, [action = std::move(action)] {
      const auto status = action();
      EXPECT_TRUE(status.ok()) << status.text();
    });
  }

  FakeCuda& fake_;
  Stream stream_;
  Link link_;
  std::mutex mutex_;  // guards failure_
  Status failure_;
};

// A float32 tensor of a framework, whose values are written and read on a stream.
struct DeviceTensor {
  std::vector<float> values;
  explicit DeviceTensor(std::size_t count) : values(count, -1.0F) {}
};

class DeviceRank {
 public:
  // `streams` is the number of streams with a device transport; 0: none. `options` may have another device transport
  // than the fake one.
  DeviceRank(World& world, FakeCuda& fake, int streams, const EngineOptions& options = {})
      : fake_(fake),
        device_(cuda::CudaDevice::open(fake.driver(), world.rank)),
        stream_(fake.make_stream(world.rank)),
        rank_(world, with_transports(world, streams, options)) {}

  ProcessSetEngine& engine() { return rank_.engine(); }
  FakeCuda& fake() { return fake_; }
  Device& device() { return *device_; }
  Stream stream() const { return stream_; }
  int rank() { return engine().rank(); }
  int size() { return engine().size(); }
  // Makes the transport report a failure at its next check.
  void fail_transport(Status status) { transport_->fail(std::move(status)); }

  // Makes the framework compute values later.
  void fill(DeviceTensor& tensor, float value) {
    fake_.enqueue(stream_, [&tensor, value] { tensor.values.assign(tensor.values.size(), value); });
  }
  // Blocks the framework's stream until `gate` is ready.
  void hold(std::shared_future<void> until) {
    fake_.enqueue(stream_, [until = std::move(until)] { until.wait(); });
  }
  // Returns what the framework reads after all work on its stream.
  std::vector<float> read(const DeviceTensor& tensor) {
    std::vector<float> copy;
    fake_.enqueue(stream_, [&] { copy = tensor.values; });
    fake_.synchronize(stream_);
    return copy;
  }

  // Returns the same for memory that the core has allocated.
  std::vector<float> read(const Result& result) {
    std::vector<float> copy;
    fake_.enqueue(stream_, [&] {
      const auto* values = static_cast<const float*>(result.data());
      const auto count = result.bytes() / sizeof(float);
      copy.assign(values, values + count);
    });
    fake_.synchronize(stream_);
    return copy;
  }

  std::shared_ptr<WorkItem> work(Verb verb, const std::string& name, const std::vector<DeviceTensor*>& tensors) {
    auto work = std::make_shared<WorkItem>();
    work->request.verb = verb;
    work->request.name = name;
    work->request.on_host = false;
    for (auto* tensor : tensors) {
      work->request.members.push_back({DType::float32, {static_cast<std::int64_t>(tensor->values.size())}});
      work->inputs.push_back(tensor->values.data());
    }
    if (verb == Verb::allreduce || verb == Verb::broadcast || verb == Verb::adasum) work->outputs = work->inputs;
    return work;
  }

  std::shared_ptr<Completion> submit(const std::shared_ptr<WorkItem>& work) { return submit(work, stream_); }
  // Submits from another stream of the framework.
  std::shared_ptr<Completion> submit(const std::shared_ptr<WorkItem>& work, Stream stream) {
    work->completion.on_device = on_device(device_, stream, work->request.label());
    engine().submit(work);
    return completion_of(work);
  }

  // Makes the framework's stream wait for the result. Returns the text of the failure, or "".
  std::string finish(const std::shared_ptr<Completion>& completion) {
    engine().wait(*completion);
    if (!completion->status().ok()) return completion->status().text();
    arrive(*completion->on_device, stream_);
    return "";
  }

  std::string allreduce(const std::string& name, DeviceTensor& tensor) {
    return finish(submit(work(Verb::allreduce, name, {&tensor})));
  }

 private:
  EngineOptions with_transports(World& world, int streams, EngineOptions options) {
    options.streams = streams;
    options.device = [this] { return device_; };
    if (options.device_transports) return options;  // real transports
    options.device_transports = [this, &world](const auto&, const auto& stream, const BootstrapAllgather& exchange,
                                               auto&) {
      exchange("");  // all ranks take part
      auto made = std::make_unique<StreamTransport>(fake_, *stream, world.connect_all());
      transport_ = made.get();
      return made;
    };
    return options;
  }

  FakeCuda& fake_;
  std::shared_ptr<cuda::CudaDevice> device_;
  Stream stream_;
  StreamTransport* transport_ = nullptr;
  EngineRank rank_;
};

}  // namespace perseus::testing
