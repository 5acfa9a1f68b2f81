// Returns true if two ranges of memory have a byte in common.
#pragma once

#include <cstdint>

namespace perseus::shm {

inline bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + static_cast<std::uintptr_t>(b_bytes) &&
         y < x + static_cast<std::uintptr_t>(a_bytes);
}

}  // namespace perseus::shm
