#include "base/wait/doorbell.h"

#include "base/wait/futex.h"

namespace perseus {

void Doorbell::notify() {
  notifications_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeper_.load(std::memory_order_seq_cst) == 0) return;
  // A woken thread may wait long for a core. Until it sleeps again, further notifications need no system call.
  if (const auto bits = sleeper_.exchange(0, std::memory_order_seq_cst); bits != 0) futex_wake(notifications_, bits);
}

void Doorbell::wait(std::uint32_t seen, Sleeper who, std::chrono::microseconds limit) {
  const auto bits = static_cast<std::uint32_t>(who);
  // Both threads may sleep here for a moment, if a caller takes over just as the communication thread goes to sleep.
  sleeper_.fetch_or(bits, std::memory_order_seq_cst);
  futex_wait(notifications_, seen, limit, bits);
  sleeper_.fetch_and(~bits, std::memory_order_seq_cst);
}

void Doorbell::hand_back(std::uint32_t seen) {
  const auto engine = static_cast<std::uint32_t>(Sleeper::engine);
  sleeper_.fetch_or(engine, std::memory_order_seq_cst);
  if (notifications_.load(std::memory_order_seq_cst) == seen) return;
  // This counts as a notification, because the communication thread may have read the counter before the caller let go
  // of the engine. It must not sleep on that value.
  notifications_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(notifications_, engine);
}

}  // namespace perseus
