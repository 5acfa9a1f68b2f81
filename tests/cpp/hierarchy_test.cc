// How a group lies on hosts, and who can speak to whom there.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "hierarchy_world.h"
#include "transport/hierarchy/layout.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using hierarchy::Layout;

TEST(Layout, LanesAreAsManyAsTheSmallestHostHasRanks) {
  const Topology topology(0, {0, 0, 0, 1, 1});
  const std::array members = {0, 1, 2, 3, 4};
  const Layout layout(topology, members);
  EXPECT_EQ(layout.host_count(), 2);
  EXPECT_EQ(layout.lane_count(), 2);
  EXPECT_EQ(layout.lane_members(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(layout.lane_members(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(layout.host_members(0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(layout.index_of(4), 1);
}

TEST(Layout, RanksOfALaneAscendThoughHostsDoNot) {
  const Topology topology(0, {0, 1, 1, 0});
  const std::array members = {0, 1, 2, 3};
  const Layout layout(topology, members);
  EXPECT_EQ(layout.lane_members(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.hosts_of_lane(1), (std::vector<int>{1, 0}));
}

TEST(Layout, GroupRanksArePlacesAmongTheMembers) {
  const Topology topology(4, {0, 0, 1, 1, 2});
  const std::array members = {1, 3, 4};
  const Layout layout(topology, members);
  EXPECT_EQ(layout.host_count(), 3);
  EXPECT_EQ(layout.lane_members(0), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(layout.find_host(1), 1);
  EXPECT_EQ(Layout(topology, std::array{0, 4}).find_host(1), -1);
}

// Every rank greets every other: on its host, as leaders do, and past them.
TEST(ClusterChannel, ReachesEverybody) {
  run_world(Ranks::hosts, 5, [](World& world) {
    const auto link = world.connect_all();
    link.control->expect_anybody(true);
    for (int peer = 0; peer < world.size; ++peer) link.control->send(peer, "from " + std::to_string(world.rank));
    std::set<int> heard;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (ControlMessage message; std::ssize(heard) < world.size && std::chrono::steady_clock::now() < deadline;) {
      if (!link.control->receive(message)) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(message.bytes, "from " + std::to_string(message.from));
      heard.insert(message.from);
    }
    EXPECT_EQ(std::ssize(heard), world.size);
    EXPECT_TRUE(link.transport->barrier().ok());
  });
}

// Means of sums that do not fit 16 bits: hosts must not overflow on the way.
TEST(ClusterTransport, AverageOfLargeHalvesDoesNotOverflow) {
  run_world(Ranks::hosts, 4, [](World& world) {
    const auto link = world.connect_all();
    std::vector<float> values(5000, 40'000.0F);
    const Piece piece{values.data(), static_cast<std::int64_t>(values.size())};
    Reduction average;
    average.wire = DType::float16;
    average.scale.divisor = world.size;
    const auto status = link.transport->allreduce(average, {&piece, 1}, {&piece, 1});
    ASSERT_TRUE(status.ok()) << status.text();
    for (const float value : values) ASSERT_EQ(value, 40'000.0F);
  });
}

}  // namespace
}  // namespace perseus::testing
