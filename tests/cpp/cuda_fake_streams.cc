// The fake driver's streams, which are queues of work.
#include <gtest/gtest.h>

#include <utility>

#include "cuda_fake.h"

namespace perseus::testing {

FakeCuda::Queue* FakeCuda::queue_of(cuda::StreamHandle stream) {
  const auto found = queues_.find(stream);
  if (found != queues_.end()) return found->second.get();
  EXPECT_EQ(stream, nullptr) << "the stream was destroyed or never created";
  return add_queue(0);
}

// The first queue is the default stream.
FakeCuda::Queue* FakeCuda::add_queue(int device) {
  auto made = std::make_unique<Queue>();
  made->device = device;
  auto* queue = made.get();
  const bool is_default = !queues_.contains(nullptr);
  queues_[is_default ? nullptr : static_cast<cuda::StreamHandle>(queue)] = std::move(made);
  if (streams_ == FakeStreams::threads) queue->thread = std::thread([this, queue] { work(*queue); });
  return queue;
}

void FakeCuda::put(Queue& queue, Operation operation) {
  ++queue.given;
  if (streams_ == FakeStreams::eager) {
    operation.run();
    ++queue.finished;
    if (operation.mark) operation.mark->done = true;
    return;
  }
  queue.operations.push_back(std::move(operation));
  changed_.notify_all();
}

void FakeCuda::work(Queue& queue) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return queue.stop || !queue.operations.empty(); });
    if (queue.operations.empty()) return;
    auto operation = std::move(queue.operations.front());
    queue.operations.pop_front();
    if (operation.wait) changed_.wait(lock, [&] { return operation.wait->done; });
    lock.unlock();
    operation.run();
    lock.lock();
    ++queue.finished;
    if (operation.mark) operation.mark->done = true;
    changed_.notify_all();
  }
}

// Runs the queue's work up to operation `number`.
void FakeCuda::run_to(Queue& queue, std::uint64_t number, std::unique_lock<std::mutex>& lock) {
  if (streams_ == FakeStreams::threads) {
    changed_.wait(lock, [&] { return queue.finished >= number; });
    return;
  }
  while (queue.finished < number) {
    const auto operation = std::move(queue.operations.front());
    queue.operations.pop_front();
    if (operation.wait && !operation.wait->done) run_to(*operation.wait->queue, operation.wait->number, lock);
    operation.run();
    ++queue.finished;
    if (operation.mark) operation.mark->done = true;
  }
}

void FakeCuda::finish_all(std::unique_lock<std::mutex>& lock, int device) {
  std::vector<Queue*> of_device;  // a copy, because the list of queues may change meanwhile
  for (auto& [handle, queue] : queues_) {
    if (queue->device == device) of_device.push_back(queue.get());
  }
  for (auto* queue : of_device) run_to(*queue, queue->given, lock);
}

Stream FakeCuda::make_stream(int device) {
  const std::scoped_lock lock(mutex_);
  if (!queues_.contains(nullptr)) add_queue(0);
  return reinterpret_cast<Stream>(add_queue(device));
}

void FakeCuda::enqueue(Stream stream, std::function<void()> kernel) {
  const std::scoped_lock lock(mutex_);
  put(*queue_of(reinterpret_cast<cuda::StreamHandle>(stream)), {std::move(kernel), nullptr, nullptr});
}

void FakeCuda::synchronize(Stream stream) {
  std::unique_lock lock(mutex_);
  auto* queue = queue_of(reinterpret_cast<cuda::StreamHandle>(stream));
  run_to(*queue, queue->given, lock);
}

void FakeCuda::capture(Stream stream, bool capturing) {
  const std::scoped_lock lock(mutex_);
  queue_of(reinterpret_cast<cuda::StreamHandle>(stream))->capturing = capturing;
}

}  // namespace perseus::testing
