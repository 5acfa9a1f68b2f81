// How a rank waits for a flag: it polls for a while, then it sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "bootstrap/liveness.h"
#include "transport/shm/flag.h"

namespace perseus::shm {

// How long it polls. Whoever comes to an operation may have to wait for long: it polls for as long as that has paid off
// lately. Where all have come, the next is a piece of work away: it always polls the full time. Otherwise one late
// wake-up would end in all of them sleeping at every step, each waiting for the other's wake-up, which takes longer
// than the step.
enum class For { arrival, progress };

// One thread's.
class Waiter {
 public:
  // `crowded`: there are more ranks than cores, and who polls takes the time of the one it waits for.
  Waiter(std::chrono::microseconds longest_spin, bool crowded, const Liveness& liveness);

  // True once the flag has reached `step`; false when it never will: a peer is lost, or `broken` was set by one.
  bool wait(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken, For what) {
    return flag.reached(step) || wait_longer(flag, step, broken, what);
  }

 private:
  void poll_longer() { polls_ = std::min(longest_, polls_ + polls_ / 4 + 1); }
  bool wait_longer(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken, For what);
  bool sleep(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken) const;

  std::chrono::microseconds short_sleep_;
  int longest_;  // polls
  int shortest_;
  int polls_;  // for an arrival: as many as have paid off lately
  const Liveness& liveness_;
};

}  // namespace perseus::shm
