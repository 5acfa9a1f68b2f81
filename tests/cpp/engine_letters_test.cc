// Messages between two ranks: they meet by sender and tag, in order, whoever is first and however large they are.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/letters.h"
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

class LettersTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(OneHost, LettersTest,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(1, 2, 4)));
INSTANTIATE_TEST_SUITE_P(Mpi, LettersTest,
                         ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(SeveralHosts, LettersTest,
                         ::testing::Combine(::testing::Values(Ranks::hosts), ::testing::Values(3, 4)));

// One side of a message with its memory.
struct Side {
  std::vector<std::int64_t> data;
  std::shared_ptr<Completion> completion;
};

Side start(Lane& lane, bool outgoing, int peer, std::int64_t tag, std::vector<std::int64_t> data) {
  Side side{std::move(data), nullptr};
  auto letter = std::make_shared<Letter>();
  letter->outgoing = outgoing;
  letter->peer = peer;
  letter->tag = tag;
  letter->data = side.data.data();
  letter->dtype = DType::int64;
  letter->count = static_cast<std::int64_t>(side.data.size());
  side.completion = lane.post(std::move(letter));
  return side;
}

Side send(Lane& lane, int to, std::int64_t tag, std::size_t count, std::int64_t value) {
  return start(lane, true, to, tag, std::vector<std::int64_t>(count, value));
}
Side receive(Lane& lane, int from, std::int64_t tag, std::size_t count) {
  return start(lane, false, from, tag, std::vector<std::int64_t>(count, -1));
}

void finish(Lane& lane, Side& side) {
  lane.wait(*side.completion);
  ASSERT_TRUE(side.completion->status().ok()) << side.completion->status().text();
}

TEST_P(LettersTest, AllSendBeforeTheyReceive) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& lane = rank.lane();
    const int next = (world.rank + 1) % world.size, previous = (world.rank + world.size - 1) % world.size;
    for (const std::size_t count : {0, 1, 500, 600, 100'000, 400'000}) {
      auto sent = send(lane, next, 7, count, world.rank);
      finish(lane, sent);
      auto received = receive(lane, previous, 7, count);
      finish(lane, received);
      EXPECT_EQ(received.completion->number, previous);
      EXPECT_EQ(received.data, std::vector<std::int64_t>(count, previous));
    }
    lane.close(kGrace);
  });
}

TEST_P(LettersTest, ByTagInAnyOrderAndByOrderWithinATag) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& lane = rank.lane();
    const int to = world.size - 1;
    std::vector<Side> sides;
    if (world.rank == 0) {
      for (int i = 0; i < 6; ++i) sides.push_back(send(lane, to, i % 2, 1000, i));
    }
    if (world.rank == to) {
      for (const int tag : {1, 0, 1, 0, 0, 1}) sides.push_back(receive(lane, 0, tag, 1000));
    }
    for (auto& side : sides) finish(lane, side);
    if (world.rank == to) {
      std::vector<std::int64_t> values;
      for (auto at = sides.end() - 6; at != sides.end(); ++at) values.push_back(at->data.front());
      EXPECT_EQ(values, (std::vector<std::int64_t>{1, 0, 3, 2, 4, 5}));
    }
    lane.close(kGrace);
  });
}

TEST_P(LettersTest, FromAnybodyWhileCollectivesGoOn) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& lane = rank.lane();
    std::vector<Side> sides;
    if (world.rank == 0) {
      for (int i = 1; i < world.size; ++i) sides.push_back(receive(lane, Letter::kAnybody, 3, 50'000));
    }
    rank.finish(*rank.allreduce("before", 1000));
    if (world.rank != 0) sides.push_back(send(lane, 0, 3, 50'000, world.rank));
    rank.finish(*rank.allreduce("after", 300'000));
    std::int64_t senders = 0;
    for (auto& side : sides) {
      finish(lane, side);
      if (world.rank == 0) {
        EXPECT_EQ(side.data, std::vector<std::int64_t>(50'000, side.completion->number));
        senders += side.completion->number;
      }
    }
    EXPECT_EQ(senders, world.rank == 0 ? world.size * (world.size - 1) / 2 : 0);
    lane.close(kGrace);
  });
}

// The sender has gone on: it is told with its next message from or to that rank.
TEST_P(LettersTest, SizesThatDifferAreAnErrorOnBothSides) {
  if (std::get<int>(GetParam()) < 2) return;
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    EngineRank rank(world, {}, hosts);
    auto& lane = rank.lane();
    const int receiver = world.size - 1;
    const std::string expected = "a message with tag 0: rank 0 sent 5 int64, rank " + std::to_string(receiver) +
                                 " has room for 4 int64; both must be the same";
    if (world.rank == receiver) {
      auto received = receive(lane, 0, 0, 4);
      lane.wait(*received.completion);
      EXPECT_EQ(received.completion->status().kind(), ErrorKind::disagreement);
      EXPECT_EQ(received.completion->status().text(), expected);
      auto word = receive(lane, 0, 1, 1);
      finish(lane, word);
    }
    if (world.rank == 0) {
      auto sent = send(lane, receiver, 0, 5, 1);
      finish(lane, sent);
      // Refused until the word of it has come.
      Side next;
      do {
        next = receive(lane, receiver, 2, 1);
        lane.wait(*next.completion, true, Lane::Clock::now() + 1ms);
      } while (!next.completion->done());
      EXPECT_EQ(next.completion->status().text(), expected);
      auto word = send(lane, receiver, 1, 1, 1);
      finish(lane, word);
    }
    rank.finish(*rank.allreduce("goes on", 10));
    lane.close(kGrace);
  });
}

TEST(Letters, WhatWasSentBeforeLeavingCanBeReceived) {
  for (const auto ranks : {Ranks::threads, Ranks::processes}) {
    run({ranks, 2}, [](World& world) {
      EngineRank rank(world);
      auto& lane = rank.lane();
      if (world.rank == 0) {
        auto small = send(lane, 1, 0, 5, 1), large = send(lane, 1, 1, 100'000, 2);
        finish(lane, small);
        finish(lane, large);
        lane.close(kGrace);
        return;
      }
      auto never = receive(lane, 0, 2, 1);
      lane.wait(*never.completion);  // until rank 0 has left
      EXPECT_FALSE(never.completion->status().ok());
      auto large = receive(lane, 0, 1, 100'000), small = receive(lane, 0, 0, 5);
      finish(lane, large);
      finish(lane, small);
      EXPECT_EQ(large.data.back(), 2);
      lane.close(kGrace);
    });
  }
}

TEST(Letters, AWaitCanBeLimited) {
  run({Ranks::threads, 2}, [](World& world) {
    EngineRank rank(world);
    auto& lane = rank.lane();
    auto received = receive(lane, 1 - world.rank, 0, 1);
    lane.wait(*received.completion, true, Lane::Clock::now() + 20ms);
    EXPECT_FALSE(received.completion->done());
    rank.finish(*rank.barrier("both have given up"));
    auto sent = send(lane, 1 - world.rank, 0, 1, 5);
    finish(lane, sent);
    finish(lane, received);
    EXPECT_EQ(received.data.front(), 5);
    lane.close(kGrace);
  });
}

}  // namespace
}  // namespace perseus
