// Who reports to whom in a negotiation: ranks to their host's leader, leaders to leaders, up to rank 0 of the group.
#pragma once

#include <span>
#include <vector>

namespace perseus {

// The place of one rank of a group. All numbers are group ranks.
struct Tree {
  int rank = 0;
  int parent = -1;            // -1 at the root
  std::vector<int> children;  // ascending
  // ranks_below[i]: the ranks whose reports come through children[i], itself included.
  std::vector<std::vector<int>> ranks_below;
  std::vector<int> world_ranks;  // of every rank of the group, for texts

  int size() const { return static_cast<int>(world_ranks.size()); }
  bool is_root() const { return parent < 0; }
};

// `hosts[i]` is the host of group rank i. A host's leader is its lowest rank; the leaders form a tree of `fan_out`,
// so that no rank ever talks to more than that many others between hosts.
Tree make_tree(int rank, std::span<const int> hosts, std::vector<int> world_ranks, int fan_out = 16);

}  // namespace perseus
