// Tests local and cross ranks.
#include "bootstrap/topology.h"

#include <gtest/gtest.h>

#include "bootstrap/bootstrap.h"

namespace perseus {
namespace {

TEST(Topology, OneHost) {
  const Topology topology(2, {0, 0, 0, 0});
  EXPECT_EQ(topology.local_rank(), 2);
  EXPECT_EQ(topology.local_size(), 4);
  EXPECT_EQ(topology.cross_rank(), 0);
  EXPECT_EQ(topology.cross_size(), 1);
  EXPECT_TRUE(topology.is_homogeneous());
}

TEST(Topology, RanksDealtInTurn) {
  const Topology topology(3, {0, 1, 0, 1});
  EXPECT_EQ(topology.host_of(3), 1);
  EXPECT_EQ(topology.local_rank(), 1);
  EXPECT_EQ(topology.local_ranks(), (std::vector<int>{1, 3}));
  EXPECT_EQ(topology.cross_rank(), 1);
  EXPECT_EQ(topology.cross_size(), 2);
}

TEST(Topology, HostsAreNumberedByTheirLowestRank) {
  const Topology topology(0, {7, 2, 7, 2});
  EXPECT_EQ(topology.host_count(), 2);
  EXPECT_EQ(topology.host_of(0), 0);
  EXPECT_EQ(topology.host_of(1), 1);
}

TEST(Topology, UnevenHosts) {
  // The hosts have 1, 3 and 2 ranks.
  const std::vector<int> hosts = {0, 1, 1, 1, 2, 2};
  EXPECT_FALSE(Topology(0, hosts).is_homogeneous());
  EXPECT_EQ(Topology(0, hosts).cross_size(), 3);
  // Only the hosts with 3 and 2 ranks have a second local rank.
  EXPECT_EQ(Topology(2, hosts).cross_rank(), 0);
  EXPECT_EQ(Topology(2, hosts).cross_size(), 2);
  EXPECT_EQ(Topology(5, hosts).cross_rank(), 1);
  // Only one host has a third local rank.
  EXPECT_EQ(Topology(3, hosts).cross_rank(), 0);
  EXPECT_EQ(Topology(3, hosts).cross_size(), 1);
}

TEST(Topology, IsDiscovered) {
  SingleBootstrap bootstrap;
  const auto topology = Topology::discover(bootstrap);
  EXPECT_EQ(topology.size(), 1);
  EXPECT_EQ(topology.host_count(), 1);
}

}  // namespace
}  // namespace perseus
