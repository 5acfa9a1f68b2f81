// The options of the negotiation of a process set.
#pragma once

#include <chrono>
#include <cstdint>

namespace perseus {

struct NegotiatorOptions {
  std::int64_t cache_capacity = 16384;
  std::chrono::milliseconds stall_warning{60000};    // 0: no warnings
  std::chrono::milliseconds stall_shutdown{0};       // 0: no shutdown
  std::chrono::milliseconds first_stall_warning{0};  // 0: as late as later ones
};

}  // namespace perseus
