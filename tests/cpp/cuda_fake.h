// A fake CUDA driver without a device: memory is host memory, kernels run on the host, and streams are queues.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/cuda_driver.h"
#include "device/device.h"

namespace perseus::testing {

// The order in which streams execute work. With `eager`, each call returns when its work is done. With `late`, work
// runs only when a thread waits for it, so that code without a wait reads old data. With `threads`, each stream has a
// thread, so that ThreadSanitizer detects a missing wait.
enum class FakeStreams { eager, late, threads };

class FakeCuda {
 public:
  explicit FakeCuda(FakeStreams streams = FakeStreams::late, int devices = 1);
  ~FakeCuda();  // checks that all memory was freed, unless leave() was called
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  const cuda::Driver& driver() const { return driver_; }

  // The functions of the driver that a framework calls directly.
  Stream make_stream(int device = 0);
  void enqueue(Stream stream, std::function<void()> kernel);
  void synchronize(Stream stream);
  void capture(Stream stream, bool capturing);

  // Makes the call of this name fail with this code from now on. With code 0, it succeeds again.
  void fail(const std::string& call, cuda::Result result);
  void pretend_version(int version) { version_ = version; }
  void pretend_multicast() { has_multicast_ = true; }
  // Makes the destructor expect that this many blocks of memory were never freed. Their device stays open.
  void leave(std::size_t blocks) { left_ = blocks; }

  int calls(const std::string& call);
  // Returns the number of contexts pushed and not popped on this thread.
  static int pushed();
  // Returns the current device of this thread; -1: none.
  static int current();
  std::vector<std::string> launched();

 private:
  friend struct FakeCalls;
  struct Queue;
  // A point in a stream's work.
  struct Mark {
    Queue* queue = nullptr;
    std::uint64_t number = 0;
    bool done = false;
  };
  struct Operation {
    std::function<void()> run;
    std::shared_ptr<Mark> wait;
    std::shared_ptr<Mark> mark;
  };
  struct Queue {
    std::deque<Operation> operations;
    std::uint64_t given = 0, finished = 0;
    bool capturing = false;
    bool stop = false;
    int device = 0;
    std::thread thread;
  };
  struct Event {
    std::shared_ptr<Mark> mark;
  };
  struct Function {
    std::string name;
    std::function<void(std::int64_t blocks, const cuda::Pointer& segments, int count, void* buffer,
                       const void* scaling)>
        run;
  };

  cuda::Result begin(const char* call, bool needs_context = true);
  Queue* queue_of(cuda::StreamHandle stream);
  Queue* add_queue(int device);
  void put(Queue& queue, Operation operation);
  void work(Queue& queue);
  void run_to(Queue& queue, std::uint64_t number, std::unique_lock<std::mutex>& lock);
  void finish_all(std::unique_lock<std::mutex>& lock, int device);

  const FakeStreams streams_;
  const int devices_;
  cuda::Driver driver_{};
  int version_ = 13000;
  bool has_multicast_ = false;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::map<cuda::StreamHandle, std::unique_ptr<Queue>> queues_;
  std::set<Event*> events_;
  std::set<void*> memory_;
  std::size_t left_ = 0;
  std::map<std::string, cuda::Result> failures_;
  std::map<std::string, int> calls_;
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::vector<std::string> launched_;
  std::atomic<int> retained_ = 0, modules_ = 0, pools_ = 0;
  std::atomic<bool> reuses_by_dependencies_ = true;
};

}  // namespace perseus::testing
