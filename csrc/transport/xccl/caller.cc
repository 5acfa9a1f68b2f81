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

std::atomic<bool> has_abandoned_call{false};

}  // namespace

bool Caller::any_abandoned() { return has_abandoned_call; }

struct Caller::State {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::function<int()> call;  // empty if there is nothing to do
  int result = 0;
  bool running = false;  // the call is running
  bool closed = false;
  bool left = false;  // the thread has ended
};

Caller::Caller() : state_(std::make_shared<State>()) {
  std::thread([state = state_] {
    pthread_setname_np(pthread_self(), "perseus-xccl");
    std::unique_lock lock(state->mutex);
    for (;;) {
      state->changed.wait(lock, [&] { return state->call != nullptr || state->closed; });
      if (state->call == nullptr) break;
      const auto call = state->call;
      state->running = true;
      lock.unlock();
      const int result = call();
      lock.lock();
      state->running = false;
      state->result = result;
      state->call = nullptr;
      state->changed.notify_all();
    }
    state->left = true;
    state->changed.notify_all();
  }).detach();
}

// The thread is detached because it may never end. Unless a call was abandoned, the destructor waits for its end.
Caller::~Caller() {
  std::unique_lock lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
  if (!abandoned_) state_->changed.wait(lock, [&] { return state_->left; });
}

int Caller::run(std::function<int()> call, const std::function<void()>& poll) {
  std::unique_lock lock(state_->mutex);
  state_->call = std::move(call);
  state_->changed.notify_all();
  while (!state_->changed.wait_for(lock, std::chrono::milliseconds(5), [&] { return state_->call == nullptr; })) {
    lock.unlock();
    try {
      poll();
    } catch (...) {
      lock.lock();
      abandoned_ = true;
      has_abandoned_call = true;
      if (!state_->running) state_->call = nullptr;
      throw;
    }
    lock.lock();
  }
  return state_->result;
}

}  // namespace perseus::xccl
