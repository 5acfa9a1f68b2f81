// Tests the layout of groups on hosts, the control channel between hosts, and collectives over them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/host/kernels.h"
#include "hierarchy_world.h"
#include "transport/hierarchy/layout.h"
#include "transport/hierarchy/staging.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using hierarchy::Layout;

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// The ranks are not in the order of their hosts, so that each gathers into memory of its own first.
TEST(Hierarchy, LargeStagingMemoryIsFreed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  EXPECT_TRUE(ended_well(fork_rank([] {
    run_world(Ranks::hosts, 4, [](World& world) {
      const auto link = world.connect_all();
      const auto gather = [&](std::int64_t bytes) {
        const std::vector<char> in(static_cast<std::size_t>(bytes));
        std::vector<char> out(in.size() * 4);
        const std::vector<std::int64_t> counts(4, bytes);
        ASSERT_TRUE(link.transport->allgather(in.data(), out.data(), counts).ok());
      };
      gather(1 << 20);
      ASSERT_TRUE(link.transport->barrier().ok());
      const auto before = resident_bytes();
      ASSERT_TRUE(link.transport->barrier().ok());
      gather(10 << 20);
      ASSERT_TRUE(link.transport->barrier().ok());
      EXPECT_LT(resident_bytes(), before + (std::size_t{80} << 20));
      ASSERT_TRUE(link.transport->barrier().ok());
    });
  })));
}

TEST(Layout, RailsAreAsManyAsTheSmallestHostHasRanks) {
  const Topology topology(0, {0, 0, 0, 1, 1});
  const std::array members = {0, 1, 2, 3, 4};
  const Layout layout(topology, members);
  EXPECT_EQ(layout.host_count(), 2);
  EXPECT_EQ(layout.rail_count(), 2);
  EXPECT_EQ(layout.rail_members(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(layout.rail_members(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(layout.host_members(0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(layout.index_of(4), 1);
}

TEST(Layout, RanksOfARailAscendThoughHostsDoNot) {
  const Topology topology(0, {0, 1, 1, 0});
  const std::array members = {0, 1, 2, 3};
  const Layout layout(topology, members);
  EXPECT_EQ(layout.rail_members(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.hosts_of_rail(1), (std::vector<int>{1, 0}));
}

TEST(Layout, GroupRanksAreIndicesOfTheMembers) {
  const Topology topology(4, {0, 0, 1, 1, 2});
  const std::array members = {1, 3, 4};
  const Layout layout(topology, members);
  EXPECT_EQ(layout.host_count(), 3);
  EXPECT_EQ(layout.rail_members(0), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(layout.find_host(1), 1);
  EXPECT_EQ(Layout(topology, std::array{0, 4}).find_host(1), -1);
}

// Every rank sends to every other: on its host, between leaders, and directly.
TEST(HierarchicalChannel, ReachesAllRanks) {
  run_world(Ranks::hosts, 5, [](World& world) {
    const auto link = world.connect_all();
    link.control->expect_anybody(true);
    for (int peer = 0; peer < world.size; ++peer) link.control->send(peer, "from " + std::to_string(world.rank));
    std::set<int> senders;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (ControlMessage message; std::ssize(senders) < world.size && std::chrono::steady_clock::now() < deadline;) {
      if (!link.control->receive(message)) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(message.bytes, "from " + std::to_string(message.from));
      senders.insert(message.from);
    }
    EXPECT_EQ(std::ssize(senders), world.size);
    EXPECT_TRUE(link.transport->barrier().ok());
  });
}

Reduction reduction_of(DType dtype, DType wire_dtype) {
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.wire_dtype = wire_dtype;
  return reduction;
}

// An average of 16-bit values, of which each is near the smallest that there is, on hosts of these numbers of ranks.
float small_average(const std::vector<int>& hosts, float value, DType dtype) {
  auto average = reduction_of(dtype, DType::float16);
  average.scale.divisor = std::accumulate(hosts.begin(), hosts.end(), std::int64_t{0});
  const hierarchy::Levels levels(average, static_cast<int>(hosts.size()));
  const auto as_float = reduction_of(DType::float32, dtype), as_half = reduction_of(dtype, DType::float16);
  std::array<std::byte, 4> one{};
  host::pack(as_float, &value, one.data(), 1, host::Store::cached);
  std::vector<std::array<std::byte, 4>> sums(hosts.size());
  std::vector<const void*> contributions;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    std::array<std::byte, 4> sum{};
    const std::vector<const void*> ranks(static_cast<std::size_t>(hosts[i]), one.data());
    host::reduce_packed(levels.local, ranks, sum.data(), true, 1);
    host::pack(as_half, sum.data(), sums[i].data(), 1, host::Store::cached);
    contributions.push_back(sums[i].data());
  }
  std::array<std::byte, 4> result{};
  host::reduce_packed(levels.cross, contributions, result.data(), true, 1);
  float average_of_all = 0;
  const auto widened = reduction_of(DType::float32, DType::float16);
  host::unpack(widened, result.data(), &average_of_all, 1, host::Store::cached);
  return average_of_all;
}

TEST(Levels, KeepSmallAveragesOfManyHosts) {
  constexpr float kStep = 0x1p-24F;  // between neighbours among the smallest values of float16
  std::vector<int> uneven;
  for (int i = 0; i < 64; ++i) uneven.push_back(i % 2 == 0 ? 1 : 3);
  for (const auto& hosts : {std::vector<int>(64, 2), std::vector<int>(1000, 1), std::vector<int>(1000, 8), uneven}) {
    for (const auto dtype : {DType::float16, DType::float32}) {
      EXPECT_NEAR(small_average(hosts, 5e-6F, dtype), 5e-6F, kStep) << hosts.size() << " hosts";
      EXPECT_NEAR(small_average(hosts, 1e-6F, dtype), 1e-6F, kStep) << hosts.size() << " hosts";
      EXPECT_EQ(small_average(hosts, 40'000.0F, dtype), 40'000.0F) << hosts.size() << " hosts";
    }
  }
}

// Averages whose sums do not fit into 16 bits, and averages near the smallest 16-bit value.
TEST(HierarchicalTransport, KeepsAveragesOfHalves) {
  for (const int size : {4, 5}) {
    run_world(Ranks::hosts, size, [](World& world) {
      const auto link = world.connect_all();
      auto average = reduction_of(DType::float32, DType::float16);
      average.scale.divisor = world.size;
      for (const float expected : {40'000.0F, 17 * 0x1p-24F}) {
        std::vector<float> values(5000, expected);
        const Piece piece{values.data(), std::ssize(values)};
        const auto status = link.transport->allreduce(average, {&piece, 1}, {&piece, 1});
        ASSERT_TRUE(status.ok()) << status.text();
        for (const float value : values) ASSERT_NEAR(value, expected, 0x1p-24F);
      }
    });
  }
}

// Several chunks of uneven blocks: one rank has no data, one has nearly all.
class UnevenBlocks : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<std::int64_t> counts(int size) {
    std::vector<std::int64_t> counts;
    for (int r = 0; r < size; ++r) counts.push_back(r == 1 ? 0 : r == 2 ? 1'500'007 : 3 * r + 40'001);
    return counts;
  }
  static std::int32_t value(int rank, std::int64_t i) { return static_cast<std::int32_t>(rank * 1'000'003 + i * 7); }
};

TEST_P(UnevenBlocks, AreGathered) {
  for (const bool in_place : {false, true}) {
    run_world(Ranks::hosts, GetParam(), [in_place](World& world) {
      const auto link = world.connect_all();
      const auto all = counts(world.size);
      std::vector<std::int64_t> bytes, begins{0};
      for (const auto count : all) {
        bytes.push_back(count * 4);
        begins.push_back(begins.back() + count);
      }
      const auto own = static_cast<std::size_t>(world.rank);
      std::vector<std::int32_t> out(static_cast<std::size_t>(begins.back()), -1),
          mine(static_cast<std::size_t>(all[own]));
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = value(world.rank, static_cast<std::int64_t>(i));
      // The input is at a place where other ranks' blocks are written.
      if (in_place) std::copy(mine.begin(), mine.end(), out.begin());
      const auto status = link.transport->allgather(in_place ? out.data() : mine.data(), out.data(), bytes);
      ASSERT_TRUE(status.ok()) << status.text();
      for (int r = 0; r < world.size; ++r) {
        const auto rank = static_cast<std::size_t>(r);
        for (std::int64_t i = 0; i < all[rank]; ++i) {
          ASSERT_EQ(out[static_cast<std::size_t>(begins[rank] + i)], value(r, i)) << "rank " << r << " element " << i;
        }
      }
    });
  }
}

TEST_P(UnevenBlocks, AreReduced) {
  for (const bool in_place : {false, true}) {
    run_world(Ranks::hosts, GetParam(), [in_place](World& world) {
      const auto link = world.connect_all();
      const auto all = counts(world.size);
      std::int64_t total = 0, begin = 0;
      for (int r = 0; r < world.size; ++r) {
        if (r == world.rank) begin = total;
        total += all[static_cast<std::size_t>(r)];
      }
      std::vector<std::int32_t> in(static_cast<std::size_t>(total));
      for (std::int64_t i = 0; i < total; ++i) in[static_cast<std::size_t>(i)] = value(world.rank, i);
      const auto count = static_cast<std::size_t>(all[static_cast<std::size_t>(world.rank)]);
      std::vector<std::int32_t> apart(count);
      auto* out = in_place ? in.data() : apart.data();
      Reduction sum;
      sum.dtype = sum.wire_dtype = DType::int32;
      const auto status = link.transport->reduce_scatter(sum, in.data(), out, all);
      ASSERT_TRUE(status.ok()) << status.text();
      for (std::size_t i = 0; i < count; ++i) {
        std::int32_t want = 0;
        for (int r = 0; r < world.size; ++r) want += value(r, begin + static_cast<std::int64_t>(i));
        ASSERT_EQ(out[i], want) << "element " << i;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(HierarchicalTransport, UnevenBlocks, ::testing::Values(3, 4, 5));

}  // namespace
}  // namespace perseus::testing
