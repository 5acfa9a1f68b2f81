// Runs ten thousand mixed collectives of random sizes, places and delays, and checks every result.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "base/wait/futex.h"
#include "transport_buffers.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 1000;
#else
constexpr int kOperations = 10'000;
#endif

// Random numbers that are the same on all ranks, except for `own`.
struct Dice {
  std::mt19937 common{42};
  std::mt19937 own;

  explicit Dice(int rank) : own(static_cast<unsigned>(rank) + 1) {}
  std::int64_t size() {
    const auto bits = common() % 20;
    return static_cast<std::int64_t>(common() % (std::uint64_t{2} << (bits > 17 ? bits - 2 : bits % 13)));
  }
  Place place() { return own() % 2 == 0 ? Place::heap : Place::arena; }
  void dawdle() {
    for (auto n = own() % 4 == 0 ? own() % 20'000 : 0; n > 0; --n) pause();
  }
};

void allreduce(World& world, Transport& transport, Dice& dice) {
  const auto count = dice.size();
  const auto pieces = 1 + static_cast<int>(dice.common() % 5);
  Buffer buffer(world.fabric, dice.place(), DType::int32, cut(count, pieces));
  const Reduction sum{DType::int32, DType::int32, ReduceOp::sum, {}};
  buffer.fill(contribution(sum, world.rank));
  dice.dawdle();
  const auto status = transport.allreduce(sum, buffer.pieces(), buffer.pieces());
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(buffer.first_other(reduced(sum, world.size)), kNone) << "of " << count;
}

void broadcast(World& world, Transport& transport, Dice& dice) {
  const auto count = dice.size();
  const auto root = static_cast<int>(dice.common()) & 1;
  Buffer buffer(world.fabric, dice.place(), DType::uint8, {count});
  buffer.fill(world.rank == root ? sequence(0) : Numbers{0});
  dice.dawdle();
  const auto status = transport.broadcast(buffer.pieces(), root);
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(buffer.first_other(sequence(0)), kNone) << "of " << count;
}

void allgather(World& world, Transport& transport, Dice& dice) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < world.size; ++r) counts.push_back(dice.size());
  Buffer in(world.fabric, dice.place(), DType::uint8, {counts[static_cast<std::size_t>(world.rank)]});
  Buffer out(world.fabric, dice.place(), DType::uint8,
             {std::accumulate(counts.begin(), counts.end(), std::int64_t{0})});
  in.fill(sequence(world.rank));
  dice.dawdle();
  const auto status = transport.allgather(in.data(), out.data(), counts);
  ASSERT_TRUE(status.ok()) << status.text();
  std::int64_t at = 0;
  for (int r = 0; r < world.size; ++r) {
    const auto part = counts[static_cast<std::size_t>(r)];
    ASSERT_EQ(out.first_other(sequence(r), at, part), kNone) << "part of rank " << r;
    at += part;
  }
}

void reduce_scatter(World& world, Transport& transport, Dice& dice) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < world.size; ++r) counts.push_back(dice.size());
  const auto begin = std::accumulate(counts.begin(), counts.begin() + world.rank, std::int64_t{0});
  Buffer in(world.fabric, dice.place(), DType::int32, {std::accumulate(counts.begin(), counts.end(), std::int64_t{0})});
  Buffer out(world.fabric, dice.place(), DType::int32, {counts[static_cast<std::size_t>(world.rank)]});
  const Reduction max{DType::int32, DType::int32, ReduceOp::max, {}};
  in.fill(contribution(max, world.rank));
  dice.dawdle();
  const auto status = transport.reduce_scatter(max, in.data(), out.data(), counts);
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(out.first_other(reduced(max, world.size, begin)), kNone);
}

void barrier(World&, Transport& transport, Dice& dice) {
  dice.dawdle();
  ASSERT_TRUE(transport.barrier().ok());
}

TEST(ShmStress, TenThousandMixedCollectives) {
  static constexpr std::array kVerbs = {allreduce, allreduce, allreduce, broadcast, allgather, reduce_scatter, barrier};
  for (const auto& [kind, size] : {std::pair{Ranks::threads, 2}, std::pair{Ranks::processes, 3}}) {
    run_world(kind, size, [](World& world) {
      const auto link = world.connect_all();
      Dice dice(world.rank);
      for (int i = 0; i < kOperations && !::testing::Test::HasFatalFailure(); ++i) {
        kVerbs.at(dice.common() % kVerbs.size())(world, *link.transport, dice);
      }
    });
  }
}

}  // namespace
}  // namespace perseus::testing
