#include "control/tree.h"

#include <algorithm>
#include <map>
#include <utility>

namespace perseus {

namespace {

std::vector<int> leaders_of(std::span<const int> hosts) {
  std::map<int, int> leader;  // host → its lowest rank
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank)
    leader.try_emplace(hosts[static_cast<std::size_t>(rank)], rank);
  std::vector<int> leaders;
  leaders.reserve(leader.size());
  for (const auto& [host, rank] : leader) leaders.push_back(rank);
  std::sort(leaders.begin(), leaders.end());
  return leaders;
}

// Returns the parent of every rank.
std::vector<int> parents_of(std::span<const int> hosts, int fan_out) {
  const auto leaders = leaders_of(hosts);
  std::map<int, int> leader_of_host;
  for (const int leader : leaders) leader_of_host[hosts[static_cast<std::size_t>(leader)]] = leader;
  std::vector<int> parents(hosts.size());
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) parents[rank] = leader_of_host[hosts[rank]];
  for (std::size_t i = 0; i < leaders.size(); ++i) {
    const auto up = i == 0 ? -1 : leaders[(i - 1) / static_cast<std::size_t>(fan_out)];
    parents[static_cast<std::size_t>(leaders[i])] = up;
  }
  return parents;
}

}  // namespace

Tree make_tree(int rank, std::span<const int> hosts, std::vector<int> world_ranks, int fan_out) {
  Tree tree;
  tree.parents = parents_of(hosts, fan_out);
  const auto& parents = tree.parents;
  tree.rank = rank;
  tree.parent = parents[static_cast<std::size_t>(rank)];
  tree.world_ranks = std::move(world_ranks);
  std::map<int, RankSet> below;
  for (int other = 0; other < static_cast<int>(hosts.size()); ++other) {
    // Walk up from `other`; the last step before `rank` is the child through which `other` reports.
    for (int at = other; at >= 0 && at != rank; at = parents[static_cast<std::size_t>(at)]) {
      if (parents[static_cast<std::size_t>(at)] == rank) below[at].add(other);
    }
  }
  for (auto& [child, ranks] : below) {
    tree.children.push_back(child);
    tree.ranks_below.push_back(std::move(ranks));
  }
  return tree;
}

}  // namespace perseus
