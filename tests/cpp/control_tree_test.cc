// Tests that each rank has one parent, and that a parent knows the ranks below each child.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "control/tree.h"

namespace perseus {
namespace {

std::vector<Tree> trees_of(const std::vector<int>& hosts, int fan_out = 16) {
  std::vector<int> world(hosts.size());
  std::iota(world.begin(), world.end(), 100);
  std::vector<Tree> trees;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank)
    trees.push_back(make_tree(rank, hosts, world, fan_out));
  return trees;
}

std::vector<int> parents(const std::vector<Tree>& trees) {
  std::vector<int> all;
  for (const auto& tree : trees) all.push_back(tree.parent);
  return all;
}

// Checks what holds for every tree.
void check(const std::vector<Tree>& trees) {
  for (const auto& tree : trees) {
    const auto rank = &tree - trees.data();
    ASSERT_EQ(tree.rank, rank);
    EXPECT_EQ(tree.is_root(), rank == 0);
    EXPECT_EQ(tree.size(), static_cast<int>(trees.size()));
    EXPECT_TRUE(std::is_sorted(tree.children.begin(), tree.children.end()));
    ASSERT_EQ(tree.ranks_below.size(), tree.children.size());
    for (std::size_t i = 0; i < tree.children.size(); ++i) {
      const auto& child = trees[static_cast<std::size_t>(tree.children[i])];
      EXPECT_EQ(child.parent, tree.rank);
      std::set<int> expected = {child.rank};
      for (const auto& below : child.ranks_below) {
        for (const int rank : below.ranks()) expected.insert(rank);
      }
      EXPECT_EQ(tree.ranks_below[i].ranks(), std::vector(expected.begin(), expected.end()));
    }
  }
  auto reached = std::accumulate(trees.front().ranks_below.begin(), trees.front().ranks_below.end(), std::size_t{1},
                                 [](std::size_t sum, const auto& ranks) { return sum + ranks.size(); });
  EXPECT_EQ(reached, trees.size());
}

TEST(Tree, OneRank) {
  const auto trees = trees_of({0});
  check(trees);
  EXPECT_TRUE(trees.front().children.empty());
  EXPECT_EQ(trees.front().world_ranks, std::vector<int>{100});
}

TEST(Tree, OneHostHasOneLevel) {
  const auto trees = trees_of({0, 0, 0, 0});
  check(trees);
  EXPECT_EQ(parents(trees), (std::vector<int>{-1, 0, 0, 0}));
}

TEST(Tree, HostsReportThroughTheirLowestRank) {
  const auto trees = trees_of({0, 0, 1, 1, 2, 2});
  check(trees);
  EXPECT_EQ(parents(trees), (std::vector<int>{-1, 0, 0, 2, 0, 4}));
}

TEST(Tree, UnevenHostsInAnyOrder) {
  const auto trees = trees_of({3, 1, 3, 0, 1, 3, 3});
  check(trees);
  EXPECT_EQ(parents(trees), (std::vector<int>{-1, 0, 0, 0, 1, 0, 0}));
}

TEST(Tree, ManyHostsBranch) {
  std::vector<int> hosts(40);
  std::iota(hosts.begin(), hosts.end(), 0);
  for (const int fan_out : {1, 2, 3, 16}) {
    const auto trees = trees_of(hosts, fan_out);
    check(trees);
    for (const auto& tree : trees) EXPECT_LE(static_cast<int>(tree.children.size()), fan_out);
  }
}

}  // namespace
}  // namespace perseus
