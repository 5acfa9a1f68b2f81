// Defines a counter in shared memory that one rank raises and the others wait for.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/wait/futex.h"

namespace perseus::shm {

// A counter of steps. Steps only grow and wrap around; two steps that are compared differ by less than half the range.
// All-zero bytes are a valid initial state.
struct alignas(64) Flag {
  std::atomic<std::uint32_t> step{0};
  std::atomic<std::uint32_t> sleepers{0};

  // Raises the counter. A rank that sees the step also sees everything written before.
  void raise(std::uint32_t to) {
    // Sequentially consistent, so that a sleeper that missed the step has counted itself before.
    step.store(to, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(step);
  }

  bool reached(std::uint32_t wanted) const {
    return static_cast<std::int32_t>(step.load(std::memory_order_acquire) - wanted) >= 0;
  }
};

}  // namespace perseus::shm
