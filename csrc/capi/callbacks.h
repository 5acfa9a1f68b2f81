// The thread on which frameworks hear of completions: theirs may take long, or ask for the next collective.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace perseus {

class Callbacks {
 public:
  // In the order of the calls. Never throws for a lack of threads: runs the callback here then.
  void post(std::function<void()> callback);

  // Until all that was posted before has run, or `limit`.
  void drain(std::chrono::milliseconds limit);

 private:
  bool start();
  void run();

  std::mutex mutex_;  // guards all below
  std::condition_variable posted_;
  std::condition_variable ran_;
  std::vector<std::function<void()>> waiting_;
  std::uint64_t posts_ = 0;
  std::uint64_t runs_ = 0;
  bool running_ = false;
};

// This process's. Never destroyed, nor is its thread ended: a framework may complete work while the process leaves.
Callbacks& callbacks();

}  // namespace perseus
