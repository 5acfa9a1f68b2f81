// The kinds and numbers of ranks with which the tests of engines run.
#pragma once

#include <chrono>
#include <functional>
#include <tuple>
#include <vector>

#include "engine_rank.h"
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

using EngineBody = std::function<void(EngineRank&, World&)>;

// Runs the body on each rank with an engine of all ranks, which is closed afterwards.
inline void run_engines(const Case& of, const EngineBody& body, const EngineOptions& options = {}) {
  run(of, [&, hosts = hosts_of(of)](World& world) {
    EngineRank rank(world, options, hosts);
    body(rank, world);
    rank.engine().close(kGrace);
  });
}
inline void run_engines(int size, const EngineBody& body, const EngineOptions& options = {}) {
  run_engines({Ranks::threads, size}, body, options);
}

}  // namespace perseus::testing
