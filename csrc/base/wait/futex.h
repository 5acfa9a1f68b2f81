// Calls the kernel's futex functions, for words that may lie in memory shared between processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace perseus {

inline constexpr std::uint32_t kAnySleeper = 0xffffffffU;

// Sleeps while `word` equals `expected`, at most for `limit`. May return early without a reason.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds limit,
                std::uint32_t bits = kAnySleeper);

// Wakes all threads that sleep on `word` with one of `bits`.
void futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t bits = kAnySleeper);

// Tells the processor that this thread is in a spin loop.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace perseus
