// Builds the negotiation tree: ranks report to their host's leader, and leaders to leaders, up to rank 0 of the group.
#pragma once

#include <span>
#include <vector>

#include "control/rank_set.h"

namespace perseus {

// One rank's place in the negotiation tree. All numbers are group ranks.
struct Tree {
  int rank = 0;
  int parent = -1;            // -1 at the root
  std::vector<int> parents;   // of every rank
  std::vector<int> children;  // ascending
  // ranks_below[i]: the ranks whose reports come through children[i], including children[i].
  std::vector<RankSet> ranks_below;
  std::vector<int> world_ranks;  // by group rank, for texts

  int size() const { return static_cast<int>(world_ranks.size()); }
  bool is_root() const { return parent < 0; }
};

// Returns the place of `rank`. `hosts[i]` is the host of group rank i. A host's leader is its lowest rank. The leaders
// form a tree in which each has at most `fan_out` children, which bounds the messages between hosts per rank.
Tree make_tree(int rank, std::span<const int> hosts, std::vector<int> world_ranks, int fan_out = 16);

}  // namespace perseus
