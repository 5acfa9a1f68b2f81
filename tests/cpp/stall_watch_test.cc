// Tests the stall watch with many ranks of one host, whose watches and threads are those of real ranks.
#include "stall/stall_watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/watch/watch_note.h"
#include "control_requests.h"

namespace perseus::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPatience{100}, kShutdown{100};

std::pair<UniqueFd, UniqueFd> connection() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A rank that is in a collective until the test ends.
class WatchedRank {
 public:
  WatchedRank(int rank, int size, std::vector<Watch::Peer> peers)
      : watch_(std::move(peers), /*forwards=*/rank == 0, liveness_, "watch", rank),
        stalls_(Topology(rank, std::vector<int>(static_cast<std::size_t>(size), 0)), true, liveness_, kPatience) {
    stalls_.start({&watch_});
    liveness_.on_lost([this] { lost_.set_value(); });
    std::vector<int> everybody(static_cast<std::size_t>(size));
    std::iota(everybody.begin(), everybody.end(), 0);
    const StallTimes times{.warning = milliseconds(0), .shutdown = kShutdown};
    progress_ = stalls_.open(make_tree(rank, std::vector<int>(everybody.size(), 0), everybody), times);
  }

  void begin() { progress_->begin(request_, 0); }
  // Returns the text of a loss, or nothing if there is none within `limit`.
  std::string loss_within(milliseconds limit) {
    static_cast<void>(is_lost_.wait_for(limit));
    return liveness_.status().text();
  }
  void announce_shutdown() { watch_.announce_shutdown(); }

 private:
  std::promise<void> lost_;
  std::future<void> is_lost_ = lost_.get_future();
  Liveness liveness_;
  Request request_ = testing::allreduce("x", {4});
  Watch watch_;
  StallWatch stalls_;
  std::shared_ptr<EngineProgress> progress_;
};

// Ranks of one host, of which some are stopped: their connections are never read.
class WatchedHost {
 public:
  explicit WatchedHost(int size, const std::set<int>& stopped = {}) {
    std::vector<Watch::Peer> of_first;
    std::map<int, UniqueFd> of_others;
    for (int rank = 1; rank < size; ++rank) {
      auto [first, other] = connection();
      of_first.push_back({rank, std::move(first)});
      of_others[rank] = std::move(other);
    }
    ranks_.push_back(std::make_unique<WatchedRank>(0, size, std::move(of_first)));
    for (auto& [rank, socket] : of_others) {
      if (stopped.contains(rank)) {
        unread_.push_back(std::move(socket));
        continue;
      }
      std::vector<Watch::Peer> peers;
      peers.push_back({0, std::move(socket)});
      ranks_.push_back(std::make_unique<WatchedRank>(rank, size, std::move(peers)));
    }
    for (auto& rank : ranks_) rank->begin();
  }
  ~WatchedHost() {
    for (auto& rank : ranks_) rank->announce_shutdown();
  }
  WatchedHost(const WatchedHost&) = delete;
  WatchedHost& operator=(const WatchedHost&) = delete;

  const std::vector<std::unique_ptr<WatchedRank>>& ranks() const { return ranks_; }
  void end_first() {
    ranks_.front()->announce_shutdown();
    ranks_.erase(ranks_.begin());
  }

 private:
  std::vector<UniqueFd> unread_;
  std::vector<std::unique_ptr<WatchedRank>> ranks_;
};

TEST(StallWatch, NoRankIsBlamedForALongCollective) {
  WatchedHost small(16), middle(32), large(64);
  EXPECT_EQ(large.ranks().front()->loss_within(seconds(3)), "");
  for (const auto* host : {&small, &middle, &large}) {
    for (const auto& rank : host->ranks()) EXPECT_EQ(rank->loss_within(milliseconds(0)), "");
  }
}

TEST(StallWatch, NoRankIsBlamedForACollectiveOfAMinute) {
  WatchedHost host(64);
  EXPECT_EQ(host.ranks().front()->loss_within(seconds(60)), "");
  for (const auto& rank : host.ranks()) EXPECT_EQ(rank->loss_within(milliseconds(0)), "");
}

TEST(StallWatch, AStoppedRankIsNamed) {
  WatchedHost host(64, {40});
  for (const auto& rank : host.ranks()) {
    const auto text = rank->loss_within(seconds(60));
    EXPECT_NE(text.find("rank 40 was waited for too long"), std::string::npos) << text;
  }
}

// Queries between the other ranks would go through it.
TEST(StallWatch, ARankThatHasLeftIsNotBlamed) {
  WatchedHost host(4);
  host.end_first();
  EXPECT_EQ(host.ranks().front()->loss_within(seconds(3)), "");
  for (const auto& rank : host.ranks()) EXPECT_EQ(rank->loss_within(milliseconds(0)), "");
}

TEST(Watch, AMessageWaitsUntilTheSocketHasRoom) {
  constexpr int kMessages = 5000;
  Liveness liveness;
  auto [here, there] = connection();
  std::vector<Watch::Peer> peers;
  peers.push_back({1, std::move(here)});
  Watch watch(std::move(peers), true, liveness, "watch");
  for (int i = 0; i < kMessages; ++i) watch.send_to(1, std::to_string(i));
  watch.announce_shutdown();
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  bool said_goodbye = false;
  for (int i = 0; i < kMessages;) {
    WatchNote note;
    ASSERT_EQ(receive_all(there.get(), &note, sizeof note, deadline), IoResult::ok);
    if (note.word == WatchNote::Word::goodbye) {
      said_goodbye = true;
    } else {
      ASSERT_EQ(note.words(), std::to_string(i++));
    }
  }
  EXPECT_TRUE(said_goodbye);
}

}  // namespace
}  // namespace perseus::testing
