#include "base/doorbell.h"

#include "base/futex.h"

namespace perseus {

void Doorbell::ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeper_.load(std::memory_order_seq_cst) == 0) return;
  // Who was woken may wait long for a core; until it lies down again, nobody has to wake it a second time.
  if (const auto bits = sleeper_.exchange(0, std::memory_order_seq_cst); bits != 0) futex_wake(rings_, bits);
}

void Doorbell::wait(std::uint32_t seen, Sleeper who, std::chrono::microseconds limit) {
  const auto bits = static_cast<std::uint32_t>(who);
  // Both may sleep here for a moment, when a caller takes over just as the engine lies down: each has its own bit.
  sleeper_.fetch_or(bits, std::memory_order_seq_cst);
  futex_wait(rings_, seen, limit, bits);
  sleeper_.fetch_and(~bits, std::memory_order_seq_cst);
}

void Doorbell::hand_back(std::uint32_t seen) {
  const auto engine = static_cast<std::uint32_t>(Sleeper::engine);
  sleeper_.fetch_or(engine, std::memory_order_seq_cst);
  if (rings_.load(std::memory_order_seq_cst) == seen) return;
  // Counts as a ring: an engine that read the number before it found the lane taken must not sleep on it.
  rings_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(rings_, engine);
}

}  // namespace perseus
