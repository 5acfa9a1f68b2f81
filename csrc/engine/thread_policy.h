// How soon the engine's thread gets a core where all of them compute.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace perseus {

// A thread that wakes may take its core from one that computes, or wait until that one's turn is over, for milliseconds
// (SCHED_BATCH). On one host it waits: data move no faster than processors move them, and who waits for a result drives
// the engine by itself. Between hosts the wire would stand still meanwhile, which costs nothing where computing takes
// longer anyway, and all of it where callers then wait for the wire. So it depends on how much of the time they wait.
class ThreadPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ThreadPolicy(bool several_hosts) : several_hosts_(several_hosts) {}

  // Whether waits matter.
  bool looks() const { return several_hosts_; }
  // A caller has waited so long for a result. Any thread.
  void add_wait(Clock::duration waited) {
    waited_.fetch_add(std::chrono::nanoseconds(waited).count(), std::memory_order_relaxed);
  }

  // Whether the thread is to be prompt, from now on.
  bool is_prompt(Clock::time_point now);

  // The same for the thread that calls this, which is the engine's: at its start and from time to time.
  void apply(Clock::time_point now);

 private:
  bool several_hosts_;
  std::atomic<std::int64_t> waited_{0};  // nanoseconds since since_
  Clock::time_point since_{};
  double seconds_ = 0, waited_seconds_ = 0;  // what is longer ago counts less
  bool prompt_ = false;
  int applied_ = -1;  // as apply() left it; -1: not called yet
};

}  // namespace perseus
