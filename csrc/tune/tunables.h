// Defines the settings that the autotuner may change during the job, on all ranks at the same place in their plans.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace perseus {

inline constexpr std::size_t kTunables = 4;

enum class Tunable : std::size_t { fusion_threshold_bytes, batching_delay_us, chunk_bytes, streams };

inline constexpr std::array<std::string_view, kTunables> kTunableNames = {"fusion_threshold_bytes", "batching_delay_us",
                                                                          "chunk_bytes", "streams"};

using Tunables = std::array<std::int64_t, kTunables>;

inline std::int64_t value_of(const Tunables& tunables, Tunable which) {
  return tunables[static_cast<std::size_t>(which)];
}

}  // namespace perseus
