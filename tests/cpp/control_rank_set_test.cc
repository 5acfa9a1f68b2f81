// Compares sets of ranks with std::set over random operations.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "control/rank_set.h"

namespace perseus {
namespace {

constexpr int kRanks = 24;

struct Pair {
  RankSet ranks;
  std::set<int> expected;
};

void check(const Pair& pair) {
  EXPECT_EQ(pair.ranks.ranks(), std::vector(pair.expected.begin(), pair.expected.end()));
  EXPECT_EQ(pair.ranks.size(), pair.expected.size());
  EXPECT_EQ(pair.ranks.empty(), pair.expected.empty());
  if (!pair.expected.empty()) {
    EXPECT_EQ(pair.ranks.lowest(), *pair.expected.begin());
  }
  const auto& runs = pair.ranks.runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_LT(runs[i].first, runs[i].end);
    if (i > 0) {
      EXPECT_LT(runs[i - 1].end, runs[i].first) << "two runs without a gap are one";
    }
  }
}

TEST(RankSet, BehavesLikeASetOfNumbers) {
  std::mt19937 random(1);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Pair> pairs(2);
    for (int step = 0; step < 30; ++step) {
      auto& pair = pairs[static_cast<std::size_t>(below(2))];
      const auto& other = pairs[static_cast<std::size_t>(below(2))];
      const int first = below(kRanks), end = first + 1 + below(kRanks - first);
      switch (below(4)) {
        case 0:
          pair.ranks.add(first);
          pair.expected.insert(first);
          break;
        case 1:
          pair.ranks.add_run({first, end});
          for (int rank = first; rank < end; ++rank) pair.expected.insert(rank);
          break;
        case 2:
          pair.ranks.add(RankSet(other.ranks));
          pair.expected.insert(other.expected.begin(), other.expected.end());
          break;
        default: {
          const auto removed = other.expected;
          pair.ranks.remove(RankSet(other.ranks));
          for (const int rank : removed) pair.expected.erase(rank);
        }
      }
      check(pair);
    }
    EXPECT_EQ(pairs[0].ranks == pairs[1].ranks, pairs[0].expected == pairs[1].expected);
  }
}

}  // namespace
}  // namespace perseus
