// In which worlds tests of lanes run: what the ranks are, and how many.
#pragma once

#include <chrono>
#include <tuple>
#include <vector>

#include "hierarchy_world.h"
#include "transport_world.h"

namespace perseus::testing {

// For lanes that close; never waited for where all goes well.
inline constexpr std::chrono::seconds kGrace{20};

using Case = std::tuple<Ranks, int>;

inline std::vector<int> hosts_of(const Case& of) {
  return std::get<Ranks>(of) == Ranks::hosts ? crossed_hosts(std::get<int>(of)) : std::vector<int>{};
}

inline void run(const Case& of, const Body& body) { run_world(std::get<Ranks>(of), std::get<int>(of), body); }

}  // namespace perseus::testing
