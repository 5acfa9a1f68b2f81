// Runs frameworks' completion callbacks on a thread of their own, because they may take long or submit a collective.
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
  // Queues a callback; callbacks run in the order of the calls. If no thread can be started, the callback runs here.
  void post(std::function<void()> callback);

  // Runs the queued callbacks and ends the thread until there are more. A callback that takes longer than `limit` is
  // abandoned with its thread. Do not call it in a forked child, which does not have the thread.
  void end(std::chrono::milliseconds limit);

 private:
  bool start();
  void run();

  std::mutex mutex_;  // guards all below
  std::condition_variable posted_;
  std::condition_variable ran_;
  std::vector<std::function<void()>> waiting_;
  bool busy_ = false;  // callbacks are running
  bool ending_ = false;
  std::thread thread_;
};

// Returns the callbacks of this process. Never destroyed, because a framework may complete work while the process ends.
Callbacks& callbacks();

}  // namespace perseus
