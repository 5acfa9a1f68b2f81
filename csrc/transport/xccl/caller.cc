#include "transport/xccl/caller.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace perseus::xccl {

namespace {

std::atomic<bool> left_behind{false};

}  // namespace

bool Caller::left_any_behind() { return left_behind; }

struct Caller::Desk {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::function<int()> call;  // empty: nothing to do
  int result = 0;
  bool running = false;  // the call
  bool closed = false;
  bool left = false;  // the thread
};

Caller::Caller() : desk_(std::make_shared<Desk>()) {
  std::thread([desk = desk_] {
    pthread_setname_np(pthread_self(), "perseus-xccl");
    std::unique_lock lock(desk->mutex);
    for (;;) {
      desk->changed.wait(lock, [&] { return desk->call != nullptr || desk->closed; });
      if (desk->call == nullptr) break;
      const auto call = desk->call;
      desk->running = true;
      lock.unlock();
      const int result = call();
      lock.lock();
      desk->running = false;
      desk->result = result;
      desk->call = nullptr;
      desk->changed.notify_all();
    }
    desk->left = true;
    desk->changed.notify_all();
  }).detach();
}

// Detached, since it may never end; where it does, nothing of it is left when this returns.
Caller::~Caller() {
  std::unique_lock lock(desk_->mutex);
  desk_->closed = true;
  desk_->changed.notify_all();
  if (!given_up_) desk_->changed.wait(lock, [&] { return desk_->left; });
}

int Caller::run(std::function<int()> call, const std::function<void()>& look) {
  std::unique_lock lock(desk_->mutex);
  desk_->call = std::move(call);
  desk_->changed.notify_all();
  while (!desk_->changed.wait_for(lock, std::chrono::milliseconds(5), [&] { return desk_->call == nullptr; })) {
    lock.unlock();
    try {
      look();
    } catch (...) {
      lock.lock();
      given_up_ = true;
      left_behind = true;
      if (!desk_->running) desk_->call = nullptr;
      throw;
    }
    lock.lock();
  }
  return desk_->result;
}

}  // namespace perseus::xccl
