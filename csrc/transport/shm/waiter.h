// How a rank waits for a flag: it polls for as long as that has paid off, then it sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "bootstrap/liveness.h"
#include "transport/shm/flag.h"

namespace perseus::shm {

// One thread's.
class Waiter {
 public:
  // `crowded`: there are more ranks than cores, and who polls takes the time of the one it waits for.
  Waiter(std::chrono::microseconds longest_spin, bool crowded, const Liveness& liveness);

  // True once the flag has reached `step`; false when it never will: a peer is lost, or `broken` was set by one.
  bool wait(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken) {
    return flag.reached(step) || wait_longer(flag, step, broken);
  }

 private:
  bool wait_longer(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken);
  bool sleep(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken) const;

  int longest_;  // polls
  int shortest_;
  int polls_;  // as many as have paid off lately
  const Liveness& liveness_;
};

}  // namespace perseus::shm
