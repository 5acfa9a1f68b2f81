// A counter that one rank raises and the others wait for, in shared memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace perseus::shm {

// Steps only grow and wrap around; two that are compared are never half the range apart. All-zero is a fresh flag.
struct alignas(64) Flag {
  std::atomic<std::uint32_t> step{0};
  std::atomic<std::uint32_t> sleepers{0};

  // Everything written before is visible to whoever sees the step.
  void raise(std::uint32_t to) {
    // Sequentially consistent: a sleeper that missed the step has counted itself before.
    step.store(to, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(step);
  }

  bool reached(std::uint32_t wanted) const {
    return static_cast<std::int32_t>(step.load(std::memory_order_acquire) - wanted) >= 0;
  }
};

}  // namespace perseus::shm
