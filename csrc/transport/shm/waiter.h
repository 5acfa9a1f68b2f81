// Waits for a flag: polls for a while, then sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

#include "bootstrap/watch/liveness.h"
#include "transport/shm/flag.h"

namespace perseus::shm {

// The reason for a wait, which determines how long it polls. The arrival of the other members at an operation may take
// long; the wait polls for as long as polling has been worth it lately. Once all have arrived, the next step is near
// and the wait always polls the full time. Otherwise one late wake-up would make all members sleep at every step, each
// waiting for the other's wake-up, which takes longer than the step.
enum class WaitFor { arrival, progress };

// The waits of one thread.
class Waiter {
 public:
  // `crowded` means more ranks than cores, so that a polling rank takes time from the rank for which it waits. `work`
  // is called from time to time during long waits; null: never.
  Waiter(std::chrono::microseconds longest_spin, bool crowded, const Liveness& liveness,
         std::function<void()> work = nullptr);

  // Returns true once the flag has reached `step`. Returns false if a peer is lost or has set `broken`.
  bool wait(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken, WaitFor what) {
    return flag.reached(step) || wait_longer(flag, step, broken, what);
  }

 private:
  void poll_longer() { polls_ = std::min(longest_, polls_ + polls_ / 4 + 1); }
  bool wait_longer(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken, WaitFor what);
  bool sleep(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken) const;

  std::chrono::microseconds short_sleep_;
  int longest_;  // polls
  int shortest_;
  int polls_;  // number of polls for an arrival, adapted to recent waits
  const Liveness& liveness_;
  std::function<void()> work_;
};

}  // namespace perseus::shm
