// Tests that point-to-point messages match by sender and tag, in order, for any size and order of the calls.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/point_to_point.h"
#include "engine_cases.h"
#include "engine_rank.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;
using testing::Case;
using testing::EngineRank;
using testing::hosts_of;
using testing::kGrace;
using testing::Ranks;
using testing::run;
using testing::World;

class PointToPointTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(OneHost, PointToPointTest,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(1, 2, 4)));
INSTANTIATE_TEST_SUITE_P(Mpi, PointToPointTest,
                         ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(SeveralHosts, PointToPointTest,
                         ::testing::Combine(::testing::Values(Ranks::hosts), ::testing::Values(3, 4)));

// One side of a message with its memory.
struct Side {
  std::vector<std::int64_t> data;
  std::shared_ptr<Completion> completion;
};

Side start(ProcessSetEngine& engine, bool outgoing, int peer, std::int64_t tag, std::vector<std::int64_t> data) {
  Side side{std::move(data), nullptr};
  auto operation = std::make_shared<PointToPointOp>();
  operation->outgoing = outgoing;
  operation->peer = peer;
  operation->tag = tag;
  operation->data = side.data.data();
  operation->dtype = DType::int64;
  operation->count = static_cast<std::int64_t>(side.data.size());
  side.completion = engine.post(std::move(operation));
  return side;
}

Side send(ProcessSetEngine& engine, int to, std::int64_t tag, std::size_t count, std::int64_t value) {
  return start(engine, true, to, tag, std::vector<std::int64_t>(count, value));
}
Side receive(ProcessSetEngine& engine, int from, std::int64_t tag, std::size_t count) {
  return start(engine, false, from, tag, std::vector<std::int64_t>(count, -1));
}

void finish(ProcessSetEngine& engine, Side& side) {
  engine.wait(*side.completion);
  ASSERT_TRUE(side.completion->status().ok()) << side.completion->status().text();
}

TEST_P(PointToPointTest, AllRanksSendBeforeTheyReceive) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& engine = rank.engine();
    const int next = (world.rank + 1) % world.size, previous = (world.rank + world.size - 1) % world.size;
    for (const std::size_t count : {0, 1, 500, 600, 100'000, 400'000}) {
      auto sent = send(engine, next, 7, count, world.rank);
      finish(engine, sent);
      auto received = receive(engine, previous, 7, count);
      finish(engine, received);
      EXPECT_EQ(received.completion->number, previous);
      EXPECT_EQ(received.data, std::vector<std::int64_t>(count, previous));
    }
    engine.close(kGrace);
  });
}

TEST_P(PointToPointTest, TagsMatchInAnyOrderAndKeepTheirOwnOrder) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& engine = rank.engine();
    const int to = world.size - 1;
    std::vector<Side> sides;
    if (world.rank == 0) {
      for (int i = 0; i < 6; ++i) sides.push_back(send(engine, to, i % 2, 1000, i));
    }
    if (world.rank == to) {
      for (const int tag : {1, 0, 1, 0, 0, 1}) sides.push_back(receive(engine, 0, tag, 1000));
    }
    for (auto& side : sides) finish(engine, side);
    if (world.rank == to) {
      std::vector<std::int64_t> values;
      for (auto at = sides.end() - 6; at != sides.end(); ++at) values.push_back(at->data.front());
      EXPECT_EQ(values, (std::vector<std::int64_t>{1, 0, 3, 2, 4, 5}));
    }
    engine.close(kGrace);
  });
}

TEST_P(PointToPointTest, ReceivesFromAnyRankDuringCollectives) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& engine = rank.engine();
    std::vector<Side> sides;
    if (world.rank == 0) {
      for (int i = 1; i < world.size; ++i) sides.push_back(receive(engine, PointToPointOp::kAnybody, 3, 50'000));
    }
    rank.finish(*rank.allreduce("before", 1000));
    if (world.rank != 0) sides.push_back(send(engine, 0, 3, 50'000, world.rank));
    rank.finish(*rank.allreduce("after", 300'000));
    std::int64_t senders = 0;
    for (auto& side : sides) {
      finish(engine, side);
      if (world.rank == 0) {
        EXPECT_EQ(side.data, std::vector<std::int64_t>(50'000, side.completion->number));
        senders += side.completion->number;
      }
    }
    EXPECT_EQ(senders, world.rank == 0 ? world.size * (world.size - 1) / 2 : 0);
    engine.close(kGrace);
  });
}

// The sender has continued. From now on all messages between the two ranks fail on both.
TEST_P(PointToPointTest, DifferentSizesAreAnErrorOnBothSides) {
  if (std::get<int>(GetParam()) < 2) return;
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& engine = rank.engine();
    const int receiver = world.size - 1;
    const std::string expected = "a message with tag 0: rank 0 sent 5 int64, rank " + std::to_string(receiver) +
                                 " has room for 4 int64; both must be the same. All further messages between these "
                                 "ranks fail: make a new group to go on";
    const auto fails = [&](Side side) {
      engine.wait(*side.completion);
      EXPECT_EQ(side.completion->status().text(), expected);
    };
    if (world.rank == receiver) {
      auto received = receive(engine, 0, 0, 4);
      engine.wait(*received.completion);
      EXPECT_EQ(received.completion->status().kind(), ErrorKind::disagreement);
      EXPECT_EQ(received.completion->status().text(), expected);
      fails(receive(engine, 0, 1, 1));
      fails(send(engine, 0, 1, 1, 1));
    }
    if (world.rank == 0) {
      auto sent = send(engine, receiver, 0, 5, 1);
      finish(engine, sent);
      fails(receive(engine, receiver, 2, 1));  // ends when the report of the failure arrives
      fails(send(engine, receiver, 1, 1, 1));
      fails(receive(engine, receiver, 2, 1));
    }
    rank.finish(*rank.allreduce("goes on", 10));
    engine.close(kGrace);
  });
}

TEST(PointToPoint, MessagesSentBeforeAShutdownCanBeReceived) {
  for (const auto ranks : {Ranks::threads, Ranks::processes}) {
    run({ranks, 2}, [](World& world) {
      EngineRank rank(world);
      auto& engine = rank.engine();
      if (world.rank == 0) {
        auto small = send(engine, 1, 0, 5, 1), large = send(engine, 1, 1, 100'000, 2);
        finish(engine, small);
        finish(engine, large);
        engine.close(kGrace);
        return;
      }
      auto never = receive(engine, 0, 2, 1);
      engine.wait(*never.completion);  // ends when rank 0 has left
      EXPECT_FALSE(never.completion->status().ok());
      auto large = receive(engine, 0, 1, 100'000), small = receive(engine, 0, 0, 5);
      finish(engine, large);
      finish(engine, small);
      EXPECT_EQ(large.data.back(), 2);
      engine.close(kGrace);
    });
  }
}

TEST(PointToPoint, AWaitCanHaveALimit) {
  run({Ranks::threads, 2}, [](World& world) {
    EngineRank rank(world);
    auto& engine = rank.engine();
    auto received = receive(engine, 1 - world.rank, 0, 1);
    engine.wait(*received.completion, true, ProcessSetEngine::Clock::now() + 20ms);
    EXPECT_FALSE(received.completion->done());
    rank.finish(*rank.barrier("both have given up"));
    auto sent = send(engine, 1 - world.rank, 0, 1, 5);
    finish(engine, sent);
    finish(engine, received);
    EXPECT_EQ(received.data.front(), 5);
    engine.close(kGrace);
  });
}

}  // namespace
}  // namespace perseus
