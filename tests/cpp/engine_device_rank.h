// A rank with tensors on a fake device, and a framework's stream on which they are computed and read.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda_fake.h"
#include "device/cuda/cuda_device.h"
#include "engine/execute/on_device.h"
#include "engine/process_set_engine.h"
#include "engine_rank.h"

namespace perseus::testing {

// A float32 tensor of a framework, whose values are written and read on a stream.
struct DeviceTensor {
  std::vector<float> values;
  explicit DeviceTensor(std::size_t count) : values(count, -1.0F) {}
};

class DeviceRank {
 public:
  // `streams` is the number of streams with a device transport, which `options` make; 0: tensors go through the host.
  DeviceRank(World& world, FakeCuda& fake, int streams, const EngineOptions& options = {})
      : fake_(fake),
        device_(cuda::CudaDevice::open(fake.driver(), world.rank)),
        stream_(fake.make_stream(world.rank)),
        rank_(world, with_device(streams, options)) {}

  ProcessSetEngine& engine() { return rank_.engine(); }
  FakeCuda& fake() { return fake_; }
  Device& device() { return *device_; }
  Stream stream() const { return stream_; }
  int rank() { return engine().rank(); }
  int size() { return engine().size(); }

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
  EngineOptions with_device(int streams, EngineOptions options) {
    options.streams = streams;
    options.device = [this] { return device_; };
    return options;
  }

  FakeCuda& fake_;
  std::shared_ptr<cuda::CudaDevice> device_;
  Stream stream_;
  EngineRank rank_;
};

}  // namespace perseus::testing
