#include "base/wait/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace perseus {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds limit,
                std::uint32_t bits) {
  // FUTEX_WAIT_BITSET takes an absolute time on the monotonic clock.
  timespec deadline{};
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  const auto nanoseconds = std::chrono::nanoseconds(limit).count() + deadline.tv_nsec;
  deadline.tv_sec += nanoseconds / 1'000'000'000;
  deadline.tv_nsec = nanoseconds % 1'000'000'000;
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &deadline, nullptr, bits);
}

void futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t bits) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, bits);
}

}  // namespace perseus
