// The text that all ranks get when they asked for different things under one name.
#pragma once

#include <string>
#include <vector>

#include "control/request.h"

namespace perseus {

// Ranks (of the group) that asked for the same thing.
struct Claim {
  Request request;
  std::vector<int> ranks;
};

// "rank 3", "ranks 0, 2-5"
std::string describe_ranks(std::vector<int> ranks);

// "allreduce 'fc.weight': rank 0 has float32[64,3], rank 5 has float16[64,3]". `claims` has at least two entries that
// do not agree; the first kind of difference found is named. `world_ranks[i]` is the world rank of group rank i.
std::string describe_disagreement(std::vector<Claim> claims, const std::vector<int>& world_ranks);

}  // namespace perseus
