// The kinds and numbers of ranks with which the tests of engines run.
#pragma once

#include <chrono>
#include <tuple>
#include <vector>

#include "hierarchy_world.h"
#include "transport_world.h"

namespace perseus::testing {

// The timeout for closing engines, which is not reached unless a test fails.
inline constexpr std::chrono::seconds kGrace{20};

using Case = std::tuple<Ranks, int>;

inline std::vector<int> hosts_of(const Case& of) {
  const auto kind = std::get<Ranks>(of);
  const bool several = kind == Ranks::hosts || kind == Ranks::hosts_with_outboxes;
  return several ? crossed_hosts(std::get<int>(of)) : std::vector<int>{};
}

inline void run(const Case& of, const Body& body) { run_world(std::get<Ranks>(of), std::get<int>(of), body); }

}  // namespace perseus::testing
