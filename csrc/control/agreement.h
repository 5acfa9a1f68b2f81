// Composes the error text for ranks that submitted different requests under one name.
#pragma once

#include <string>
#include <vector>

#include "control/rank_set.h"
#include "control/request.h"

namespace perseus {

// A request and the group ranks that submitted it.
struct Submission {
  Request request;
  RankSet ranks;
};

// Returns the world ranks of group ranks. `world_ranks[i]` is the world rank of group rank i.
RankSet world_ranks_of(const RankSet& ranks, const std::vector<int>& world_ranks);

// Returns a list of ranks as text, such as "rank 3" or "ranks 0, 2-5".
std::string describe_ranks(const RankSet& ranks);

// Returns the error text for `submissions`, which has at least two entries that do not agree. The text names the first
// difference found, as in "allreduce 'fc.weight': rank 0 has float32[64,3], rank 5 has float16[64,3]".
std::string describe_disagreement(std::vector<Submission> submissions, const std::vector<int>& world_ranks);

}  // namespace perseus
