// The thread on which frameworks hear of completions: theirs may take long, or ask for the next collective.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace perseus {

class Callbacks {
 public:
  // In the order of the calls. Never throws for a lack of threads: runs the callback here then.
  void post(std::function<void()> callback);

  // Runs what was posted, and ends the thread until there is more. A callback that takes longer than `limit` is left
  // behind with its thread. Not in a forked child, which has none.
  void end(std::chrono::milliseconds limit);

 private:
  bool start();
  void run();

  std::mutex mutex_;  // guards all below
  std::condition_variable posted_;
  std::condition_variable ran_;
  std::vector<std::function<void()>> waiting_;
  bool busy_ = false;  // callbacks run
  bool ending_ = false;
  std::thread thread_;
};

// This process's. Never destroyed: a framework may complete work while the process leaves.
Callbacks& callbacks();

}  // namespace perseus
