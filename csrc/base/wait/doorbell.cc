#include "base/wait/doorbell.h"

#include "base/wait/futex.h"

namespace perseus {

namespace {

constexpr auto kEngine = static_cast<std::uint32_t>(Sleeper::engine);
constexpr auto kCaller = static_cast<std::uint32_t>(Sleeper::caller);
constexpr auto kShared = static_cast<std::uint32_t>(Sleeper::shared);

}  // namespace

void Doorbell::notify() {
  notifications_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeper_.load(std::memory_order_seq_cst) == 0) return;
  // A woken thread may wait long for a core. Until it sleeps again, further notifications need no system call.
  wake(sleeper_.exchange(0, std::memory_order_seq_cst));
}

void Doorbell::wake(std::uint32_t sleepers) {
  if (const auto here = sleepers & (kEngine | kCaller); here != 0) futex_wake(notifications_, here);
  if ((sleepers & kShared) != 0) ready_set()->add(number_.load(std::memory_order_relaxed));
}

void Doorbell::wait(std::uint32_t seen, Sleeper who, std::chrono::microseconds limit) {
  const auto bits = static_cast<std::uint32_t>(who);
  // Both threads may sleep here for a moment, if a caller takes over just as the communication thread goes to sleep.
  sleeper_.fetch_or(bits, std::memory_order_seq_cst);
  futex_wait(notifications_, seen, limit, bits);
  sleeper_.fetch_and(~bits, std::memory_order_seq_cst);
}

void Doorbell::hand_back(std::uint32_t seen) {
  const auto thread = set_offset_.load(std::memory_order_relaxed) == 0 ? kEngine : kShared;
  sleeper_.fetch_or(thread, std::memory_order_seq_cst);
  if (notifications_.load(std::memory_order_seq_cst) == seen) return;
  // This counts as a notification, because the communication thread may have read the counter before the caller let go
  // of the engine. It must not sleep on that value.
  notifications_.fetch_add(1, std::memory_order_seq_cst);
  wake(thread);
}

void Doorbell::join(ReadySet& set, std::uint32_t number) {
  number_.store(number, std::memory_order_relaxed);
  set_offset_.store(reinterpret_cast<std::intptr_t>(&set) - reinterpret_cast<std::intptr_t>(this),
                    std::memory_order_relaxed);
}

ReadySet* Doorbell::ready_set() {
  const auto offset = set_offset_.load(std::memory_order_relaxed);
  return offset == 0 ? nullptr : reinterpret_cast<ReadySet*>(reinterpret_cast<std::intptr_t>(this) + offset);
}

}  // namespace perseus
