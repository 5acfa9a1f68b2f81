// Decides how soon an engine's thread gets a core while all cores compute.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace perseus {

// A thread that wakes may take its core from a computing thread, or wait for milliseconds until that thread's time
// slice ends (SCHED_BATCH). On one host it waits: the processors move the data themselves, and a caller that waits for
// a result drives the engine. Between hosts the network is idle while the thread waits. That costs nothing if computing
// takes longer anyway, and costs the whole delay if callers then wait for the network. The policy therefore depends on
// the share of time for which callers wait.
class ThreadPolicy {
 public:
  using Clock = std::chrono::steady_clock;
  // The policy that apply() has set for a thread; nothing: none yet.
  using Applied = std::optional<bool>;

  explicit ThreadPolicy(bool several_hosts) : several_hosts_(several_hosts) {}

  // Adds the time that a caller has waited for a result. Thread-safe.
  void add_wait(Clock::duration waited) {
    waited_.fetch_add(std::chrono::nanoseconds(waited).count(), std::memory_order_relaxed);
  }

  // Returns true if the thread is to preempt computing threads from now on.
  bool is_prompt(Clock::time_point now);

  // Sets this policy for the calling thread, which is the engine's. Called at its start and regularly, by one thread at
  // a time. `applied` belongs to the calling thread.
  void apply(Clock::time_point now, Applied& applied);

 private:
  bool several_hosts_;
  std::atomic<std::int64_t> waited_{0};  // nanoseconds since since_
  Clock::time_point since_{};
  double seconds_ = 0, waited_seconds_ = 0;  // older values have less weight
  bool prompt_ = false;
};

}  // namespace perseus
