// Functions that all situations use.
#pragma once

#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "situations.h"

namespace perseus::scale {

inline void require(bool is_right) {
  if (!is_right) std::abort();
}

inline Situation situation(const char* name, const Costs& costs) {
  Situation found{name, costs.root(), costs.root().connections(), costs.most_messages(), costs.most_connections()};
  found.root.peers.clear();
  return found;
}

inline std::vector<int> everybody(int ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Runs the function for each rank in a thread of its own.
template <typename Function>
void in_threads(const std::vector<int>& ranks, const Function& function) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const int rank : ranks) threads.emplace_back([&function, rank] { function(rank); });
  for (auto& thread : threads) thread.join();
}

}  // namespace perseus::scale
