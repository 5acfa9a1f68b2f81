// Lets the driver's thread look after work that was submitted without waking it, because its caller probably waits
// next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace perseus {

// While callers submit such work, the thread polls: it sleeps for a fraction of a millisecond at a time. Submitting
// then needs no system call, and work whose caller does not wait is delayed by one such period. Some milliseconds after
// the last submission, the thread sleeps without a limit again, and the next submission wakes it.
class DeferredWork {
 public:
  using Clock = std::chrono::steady_clock;

  // Called after work was submitted. Returns true if the caller must wake the thread, which does not poll. Any thread.
  bool add() {
    submissions_.fetch_add(1, std::memory_order_seq_cst);
    return !polls_.load(std::memory_order_seq_cst);
  }

  // Returns how long the driver's thread may sleep after a cycle. Only that thread calls it.
  std::chrono::microseconds sleep_limit(Clock::time_point now) {
    arrived_ = take_new();
    if (arrived_) {
      poll_until_ = now + kPolling;
    } else if (now >= poll_until_) {
      polls_.store(false, std::memory_order_seq_cst);
      // A submission that has seen the thread polling does not wake it.
      arrived_ = take_new();
      if (!arrived_) return std::chrono::hours(1);
      poll_until_ = now + kPolling;
    }
    polls_.store(true, std::memory_order_seq_cst);
    return kPeriod;
  }

  // Returns whether work was submitted before the last call of sleep_limit(), and after the call before it.
  bool arrived() const { return arrived_; }

 private:
  static constexpr std::chrono::microseconds kPeriod{200};
  static constexpr std::chrono::milliseconds kPolling{10};

  // Returns whether work was submitted since the last call.
  bool take_new() {
    const auto submissions = submissions_.load(std::memory_order_seq_cst);
    return std::exchange(seen_, submissions) != submissions;
  }

  std::atomic<std::uint32_t> submissions_{0};
  std::atomic<bool> polls_{false};
  std::uint32_t seen_ = 0;
  bool arrived_ = false;
  Clock::time_point poll_until_{};
};

}  // namespace perseus
