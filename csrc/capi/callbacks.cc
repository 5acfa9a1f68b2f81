#include "capi/callbacks.h"

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

namespace perseus {

void Callbacks::post(std::function<void()> callback) {
  {
    std::scoped_lock lock(mutex_);
    if (running_ || start()) {
      waiting_.push_back(std::move(callback));
      ++posts_;
      posted_.notify_one();
      return;
    }
  }
  callback();
}

bool Callbacks::start() {
  try {
    std::thread([this] { run(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  running_ = true;
  return true;
}

void Callbacks::run() {
  pthread_setname_np(pthread_self(), "perseus-done");
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return !waiting_.empty(); });
    auto batch = std::exchange(waiting_, {});
    lock.unlock();
    for (auto& callback : batch) std::exchange(callback, nullptr)();
    lock.lock();
    runs_ += batch.size();
    ran_.notify_all();
  }
}

void Callbacks::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  ran_.wait_for(lock, limit, [this, until = posts_] { return runs_ >= until; });
}

Callbacks& callbacks() {
  static auto* the_one = new Callbacks;
  return *the_one;
}

}  // namespace perseus
