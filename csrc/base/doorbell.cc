#include "base/doorbell.h"

#include "base/futex.h"

namespace perseus {

void Doorbell::ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (const auto bits = sleeper_.load(std::memory_order_seq_cst); bits != 0) futex_wake(rings_, bits);
}

void Doorbell::wait(std::uint32_t seen, Sleeper who, std::chrono::microseconds limit) {
  const auto bits = static_cast<std::uint32_t>(who);
  sleeper_.store(bits, std::memory_order_seq_cst);
  futex_wait(rings_, seen, limit, bits);
  // A caller may have begun to poll while the engine slept; only the sleeper itself takes its mark away.
  auto mine = bits;
  sleeper_.compare_exchange_strong(mine, 0, std::memory_order_seq_cst);
}

void Doorbell::hand_back(std::uint32_t seen) {
  const auto engine = static_cast<std::uint32_t>(Sleeper::engine);
  sleeper_.store(engine, std::memory_order_seq_cst);
  if (rings_.load(std::memory_order_seq_cst) != seen) futex_wake(rings_, engine);
}

}  // namespace perseus
