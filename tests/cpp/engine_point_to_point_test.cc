// Tests that point-to-point messages match by sender and tag, in order, for any size and order of the calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
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
using testing::kGrace;
using testing::Ranks;
using testing::run_engines;
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
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
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
  });
}

TEST_P(PointToPointTest, TagsMatchInAnyOrderAndKeepTheirOwnOrder) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
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
  });
}

TEST_P(PointToPointTest, ReceivesFromAnyRankDuringCollectives) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
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
  });
}

// The sender has continued. From now on all messages between the two ranks fail on both.
TEST_P(PointToPointTest, DifferentSizesAreAnErrorOnBothSides) {
  if (std::get<int>(GetParam()) < 2) return;
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
    auto& engine = rank.engine();
    const int receiver = world.size - 1;
    const std::string expected = "a message with tag 0: rank 0 sent 5 int64, rank " + std::to_string(receiver) +
                                 " has room for 4 int64; both must be the same. All further messages between these "
                                 "ranks fail: make a new group to go on";
    const auto fails = [&](const Side& side) {
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
  });
}

TEST(PointToPoint, MessagesSentBeforeAShutdownCanBeReceived) {
  for (const auto ranks : {Ranks::threads, Ranks::processes}) {
    run_engines({ranks, 2}, [](EngineRank& rank, World& world) {
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
    });
  }
}

// One of two ranks that share memory of a limited size. The test passes messages on by hand.
class SharedMemoryChannel final : public ControlChannel {
 public:
  SharedMemoryChannel(int rank, std::size_t room) : rank_(rank), room_(room) {}

  void connect(SharedMemoryChannel& peer) { peer_ = &peer; }
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  void send(int /*to*/, std::string bytes) override { peer_->inbox_.push_back(std::move(bytes)); }
  bool keeps_for(int /*to*/) const override { return peer_->inbox_.size() > kMostUnread; }
  bool receive(ControlMessage& message) override {
    if (inbox_.empty()) return false;
    message = {1 - rank_, std::move(inbox_.front())};
    inbox_.pop_front();
    return true;
  }
  std::optional<std::uint64_t> lay_out(int /*to*/, const void* data, std::size_t bytes) override {
    if (laid_out() + bytes > room_) return std::nullopt;
    memory_.emplace(next_place_, std::string(static_cast<const char*>(data), bytes));
    most_ = std::max(most_, laid_out());
    return next_place_++;
  }
  void take_back(std::uint64_t place) override { memory_.erase(place); }
  const void* find(int /*from*/, std::uint64_t place, std::size_t bytes) override {
    const auto found = peer_->memory_.find(place);
    return found != peer_->memory_.end() && found->second.size() >= bytes ? found->second.data() : nullptr;
  }
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return false; }

  std::size_t laid_out() const {
    return std::accumulate(memory_.begin(), memory_.end(), std::size_t{0},
                           [](std::size_t sum, const auto& each) { return sum + each.second.size(); });
  }
  std::size_t most_laid_out() const { return most_; }

 private:
  static constexpr std::size_t kMostUnread = 88;

  int rank_;
  std::size_t room_;
  SharedMemoryChannel* peer_ = nullptr;
  std::deque<std::string> inbox_;
  std::map<std::uint64_t, std::string> memory_;
  std::uint64_t next_place_ = 1;
  std::size_t most_ = 0;
  Doorbell doorbell_;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Two ranks with their messages, without engines.
struct TwoRanks {
  explicit TwoRanks(std::size_t room = 64 * kMiB) : channels{{{0, room}, {1, room}}} {
    channels[0].connect(channels[1]);
    channels[1].connect(channels[0]);
  }

  std::shared_ptr<PointToPointOp> post(bool outgoing, std::vector<std::int64_t>& data) {
    auto operation = std::make_shared<PointToPointOp>();
    operation->outgoing = outgoing;
    operation->peer = outgoing ? 1 : 0;
    operation->data = data.data();
    operation->dtype = DType::int64;
    operation->count = static_cast<std::int64_t>(data.size());
    messages[outgoing ? 0 : 1].post(operation);
    return operation;
  }

  // Runs one cycle of a rank. Returns true if anything happened.
  bool cycle(int rank) {
    bool busy = messages[static_cast<std::size_t>(rank)].make_progress();
    for (ControlMessage message; channels[static_cast<std::size_t>(rank)].receive(message); busy = true) {
      messages[static_cast<std::size_t>(rank)].receive(message.from, std::move(message.bytes));
    }
    return busy;
  }
  void cycle_both() {
    for (bool busy = true; busy;) {
      busy = cycle(0);
      busy = cycle(1) || busy;
    }
  }

  std::vector<int> world_ranks{0, 1};
  std::array<SharedMemoryChannel, 2> channels;
  std::array<PointToPoint, 2> messages{{{channels[0], world_ranks}, {channels[1], world_ranks}}};
};

std::vector<std::int64_t> ascending(std::size_t count) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

// Memory that a part has used is still in a cache when the next part is copied to it.
TEST(PointToPoint, ALongMessageToAWaitingReceiverUsesTheMemoryOfTwoParts) {
  TwoRanks ranks;
  auto sent = ascending(8 * kMiB / sizeof(std::int64_t) + 3);
  std::vector<std::int64_t> received(sent.size());
  const auto receive = ranks.post(false, received);
  const auto send = ranks.post(true, sent);
  ranks.cycle_both();
  EXPECT_TRUE(send->completion.done() && receive->completion.done());
  EXPECT_EQ(received, sent);
  EXPECT_LE(ranks.channels[0].most_laid_out(), kMiB / 2);
  EXPECT_EQ(ranks.channels[0].laid_out(), 0U);
}

TEST(PointToPoint, ALongMessageWaitsForItsReceiveInSharedMemoryAndInTheChannel) {
  for (const auto room : {std::size_t{0}, 3 * kMiB, 64 * kMiB}) {
    TwoRanks ranks(room);
    auto sent = ascending(8 * kMiB / sizeof(std::int64_t) + 3);
    const auto expected = sent;
    const auto send = ranks.post(true, sent);
    ranks.cycle_both();
    EXPECT_TRUE(send->completion.done());
    sent.assign(sent.size(), -1);
    std::vector<std::int64_t> received(sent.size());
    const auto receive = ranks.post(false, received);
    ranks.cycle_both();
    EXPECT_TRUE(receive->completion.done());
    EXPECT_EQ(received, expected) << room;
    EXPECT_EQ(ranks.channels[0].laid_out(), 0U);
  }
}

// The receiver may execute a long collective meanwhile, in which it reads no messages.
TEST(PointToPoint, ASendDoesNotWaitForAReceiverThatReadsNoMessages) {
  TwoRanks ranks;
  auto sent = ascending(32 * kMiB / sizeof(std::int64_t));
  const auto send = ranks.post(true, sent);
  while (ranks.cycle(0)) {
  }
  EXPECT_TRUE(send->completion.done());
  std::vector<std::int64_t> received(sent.size());
  const auto receive = ranks.post(false, received);
  ranks.cycle_both();
  EXPECT_TRUE(receive->completion.done());
  EXPECT_EQ(received, sent);
}

// A receiver refuses a message in the middle: the sender gets back the memory of all parts, also of those on their way.
TEST(PointToPoint, TheMemoryOfARefusedMessageIsReturned) {
  TwoRanks ranks;
  auto sent = ascending(4 * kMiB / sizeof(std::int64_t));
  std::vector<std::int64_t> too_short(10);
  const auto send = ranks.post(true, sent);
  for (int part = 0; part < 3; ++part) ranks.cycle(0);
  ranks.cycle(1);
  ranks.cycle(0);
  const auto receive = ranks.post(false, too_short);
  ranks.cycle_both();
  EXPECT_EQ(receive->completion.status().kind(), ErrorKind::disagreement);
  EXPECT_EQ(send->completion.status().kind(), ErrorKind::disagreement);
  EXPECT_EQ(ranks.channels[0].laid_out(), 0U);
}

TEST(PointToPoint, AWaitCanHaveALimit) {
  run_engines(2, [](EngineRank& rank, World& world) {
    auto& engine = rank.engine();
    auto received = receive(engine, 1 - world.rank, 0, 1);
    engine.wait(*received.completion, true, ProcessSetEngine::Clock::now() + 20ms);
    EXPECT_FALSE(received.completion->done());
    rank.finish(*rank.barrier("both have given up"));
    auto sent = send(engine, 1 - world.rank, 0, 1, 5);
    finish(engine, sent);
    finish(engine, received);
    EXPECT_EQ(received.data.front(), 5);
  });
}

}  // namespace
}  // namespace perseus
