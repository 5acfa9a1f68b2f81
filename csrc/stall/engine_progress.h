// The state of an engine that other threads read: the collective in progress, and what waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "control/request.h"

namespace perseus {

// The engine publishes its progress with a few stores; it pays more only while another thread reads the label.
class EngineProgress {
 public:
  using Clock = std::chrono::steady_clock;

  struct Step {
    std::int64_t number = -1;  // of the collective begun last, the same on all ranks; -1: none
    bool active = false;       // the collective has not ended
    bool operator==(const Step&) const = default;
  };
  struct Wait {
    std::string label;  // empty: none
    Clock::time_point since{};
    int from = -1;  // the world rank that has to send a message; -1: waits for a decision
    std::shared_ptr<const void> operation = nullptr;  // the receive that waits for it
  };

  // Called by the driver of the engine. `request` must live until end(); `more` counts requests that are executed with
  // it.
  void begin(const Request& request, std::size_t more) {
    more_.store(more, std::memory_order_relaxed);
    current_.store(&request, std::memory_order_relaxed);
    number_.fetch_add(1, std::memory_order_release);
  }
  void end() {
    const std::scoped_lock lock(mutex_);
    current_.store(nullptr, std::memory_order_relaxed);
  }
  // Reports a request that waits while nothing is decided, or a receive whose message does not come: the rank that has
  // to decide, or to send, may be stopped. Without a label, nothing waits. `now` is the time since which it waits,
  // unless the last report was about the same.
  void report_waiting(Wait waiting, Clock::time_point now) {
    if (waiting.label.empty() && waiting_.label.empty()) return;
    const std::scoped_lock lock(mutex_);
    const bool is_same = !waiting_.label.empty() && waiting_.operation == waiting.operation;
    waiting.since = is_same ? waiting_.since : now;
    waiting_ = std::move(waiting);
  }
  const std::shared_ptr<const void>& awaited() const { return waiting_.operation; }

  // Thread-safe.
  Step step() const {
    const auto number = number_.load(std::memory_order_acquire);
    return {number, current_.load(std::memory_order_relaxed) != nullptr};
  }
  // Returns for example "allreduce 'a' and 3 more"; empty if nothing is in progress.
  std::string label() {
    const std::scoped_lock lock(mutex_);
    const auto* request = current_.load(std::memory_order_acquire);
    if (request == nullptr) return {};
    const auto more = more_.load(std::memory_order_relaxed);
    return request->label() + (more == 0 ? "" : " and " + std::to_string(more) + " more");
  }
  Wait waiting() {
    const std::scoped_lock lock(mutex_);
    return waiting_;
  }

 private:
  std::atomic<std::int64_t> number_{-1};
  std::atomic<std::size_t> more_{0};
  std::atomic<const Request*> current_{nullptr};
  std::mutex mutex_;  // guards waiting_, which only the driver changes, and what current_ points to
  Wait waiting_;
};

}  // namespace perseus
