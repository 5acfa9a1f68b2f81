#include "capi/callbacks.h"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace perseus {

void Callbacks::post(std::function<void()> callback) {
  {
    std::scoped_lock lock(mutex_);
    if (thread_.joinable() || start()) {
      waiting_.push_back(std::move(callback));
      posted_.notify_one();
      return;
    }
  }
  callback();
}

bool Callbacks::start() {
  try {
    thread_ = std::thread([this] { run(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void Callbacks::run() {
  pthread_setname_np(pthread_self(), "perseus-done");
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    auto batch = std::exchange(waiting_, {});
    busy_ = true;
    lock.unlock();
    for (auto& callback : batch) std::exchange(callback, nullptr)();
    lock.lock();
    busy_ = false;
    ran_.notify_all();
  }
}

void Callbacks::end(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable() || thread_.get_id() == std::this_thread::get_id()) return;
  if (!ran_.wait_for(lock, limit, [this] { return waiting_.empty() && !busy_; })) return;
  ending_ = true;
  posted_.notify_one();
  lock.unlock();
  thread_.join();
  lock.lock();
  thread_ = {};
  ending_ = false;
  if (!waiting_.empty()) start();  // callbacks were posted while the thread ended
}

Callbacks& callbacks() {
  static auto* the_one = new Callbacks;
  return *the_one;
}

}  // namespace perseus
