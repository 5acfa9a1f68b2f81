// Tests missing-rank queries with ranks that answer, ranks that are stopped, and ranks behind stopped ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bootstrap/watch/watch_note.h"
#include "stall/missing_rank_query.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using Clock = MissingRankQuery::Clock;
using Ranks = RankSet;
using Parents = std::vector<int>;

const ProgressPoint kPoint{7, 3};
constexpr milliseconds kTimeout{100};
constexpr std::size_t kMostListed = 16;

// Three hosts of two ranks each. The parents of ranks 1, 3 and 5 are 0, 2 and 4, and the parent of 2 and 4 is 0.
class QueryJob {
 public:
  explicit QueryJob(std::set<int> stopped = {}, const std::set<int>& behind = {},
                    const Parents& parents = {-1, 0, 0, 2, 0, 4})
      : stopped_(std::move(stopped)) {
    for (int rank = 0; rank < static_cast<int>(parents.size()); ++rank) {
      const bool late = behind.contains(rank);
      ranks_.push_back(std::make_unique<MissingRankQuery>(
          rank, parents, [late](const ProgressPoint&) { return late ? Progress::behind : Progress::reached; }, kTimeout,
          kMostListed));
    }
  }

  MissingRankQuery& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  Ranks everybody() const {
    Ranks all;
    all.add_run({0, static_cast<int>(ranks_.size())});
    return all;
  }

  // Delivers all messages. Returns their number.
  int deliver() {
    int count = 0;
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
        for (const auto& message : at(from).take_messages()) {
          longest_message = std::max(longest_message, message.bytes.size());
          if (stopped_.contains(message.to)) continue;
          at(message.to).receive(from, message.bytes, start);
          any = true;
          ++count;
        }
      }
    }
    return count;
  }

  // Lets the timeout of the queries of `rank` pass. Messages take no time.
  void time_out(int rank) {
    for (int i = 0; i <= 16; ++i) {
      at(rank).look(start + i * kTimeout / 8);
      deliver();
    }
  }

  // Returns the verdict of a query of `rank` after its timeout.
  MissingRankQuery::Verdict ask(int rank, const Ranks& members) {
    at(rank).ask(kPoint, members, start);
    deliver();
    time_out(rank);
    deliver();
    const auto verdicts = at(rank).take_verdicts();
    EXPECT_EQ(verdicts.size(), 1U);
    return verdicts.empty() ? MissingRankQuery::Verdict{} : verdicts.front();
  }

  const Clock::time_point start = Clock::now();
  std::size_t longest_message = 0;

 private:
  std::set<int> stopped_;
  std::vector<std::unique_ptr<MissingRankQuery>> ranks_;
};

TEST(MissingRankQuery, NoRankIsMissing) {
  for (int asker = 0; asker < 6; ++asker) {
    QueryJob job;
    job.at(asker).ask(kPoint, job.everybody(), job.start);
    job.deliver();
    EXPECT_FALSE(job.at(asker).open()) << "all ranks have answered";
    const auto verdict = job.at(asker).take_verdicts().at(0);
    EXPECT_EQ(verdict.point, kPoint);
    EXPECT_EQ(verdict.silent, Ranks{});
    EXPECT_EQ(verdict.behind, Ranks{});
  }
}

TEST(MissingRankQuery, AllOtherRanksNameAStoppedRank) {
  for (int stopped = 0; stopped < 6; ++stopped) {
    for (int asker = 0; asker < 6; ++asker) {
      if (asker == stopped) continue;
      QueryJob job({stopped});
      const auto verdict = job.ask(asker, job.everybody());
      EXPECT_EQ(verdict.silent, Ranks{stopped}) << "asked by " << asker;
      EXPECT_EQ(verdict.behind, Ranks{});
    }
  }
}

TEST(MissingRankQuery, RanksBehindAStoppedRankAreNotBlamed) {
  QueryJob job({2, 3, 5});
  EXPECT_EQ(job.ask(1, job.everybody()).silent, (Ranks{2, 5}));
}

// One answer for each rank would be thousands of messages through the connections of rank 0.
TEST(MissingRankQuery, EachConnectionCarriesOneAnswer) {
  constexpr int kHosts = 32, kPerHost = 8;
  Parents parents;
  for (int rank = 0; rank < kHosts * kPerHost; ++rank)
    parents.push_back(rank % kPerHost == 0 ? 0 : rank - rank % kPerHost);
  parents[0] = -1;
  for (const int asker : {0, 8, 9}) {
    QueryJob job({}, {77}, parents);
    job.at(asker).ask(kPoint, job.everybody(), job.start);
    EXPECT_LE(job.deliver(), 4 * (kHosts * kPerHost - 1))
        << "a question, an answer in two parts at most, and a verdict";
    EXPECT_EQ(job.at(asker).take_verdicts().at(0).behind, Ranks{77});
  }
}

// The ranks of each host are every 32nd here, so that a host's ranks are no run of ranks.
TEST(MissingRankQuery, AnAnswerFitsIntoAMessageOfTheWatch) {
  constexpr int kHosts = 32, kPerHost = 64;
  Parents parents;
  std::set<int> behind;
  for (int rank = 0; rank < kHosts * kPerHost; ++rank) {
    parents.push_back(rank < kHosts ? 0 : rank % kHosts);
    if (rank % 3 == 0) behind.insert(rank);
  }
  parents[0] = -1;
  QueryJob job({}, behind, parents);
  job.at(1).ask({.engine = ~std::uint64_t{0}, .number = 1 << 30}, job.everybody(), job.start);
  job.deliver();
  EXPECT_LE(job.longest_message, WatchNote::kText);
  EXPECT_EQ(job.at(1).take_verdicts().at(0).more, static_cast<int>(behind.size() - kMostListed));
}

TEST(MissingRankQuery, ARankThatIsBehindIsNamed) {
  QueryJob job({5}, {3});
  const auto verdict = job.ask(0, job.everybody());
  EXPECT_EQ(verdict.silent, Ranks{5});
  EXPECT_EQ(verdict.behind, Ranks{3});
}

TEST(MissingRankQuery, RanksThatAreNotMembersAreIgnored) {
  QueryJob job({4}, {3});
  EXPECT_EQ(job.ask(0, {0, 1, 2}).silent, Ranks{});
  EXPECT_EQ(job.ask(0, {0, 1, 2}).behind, Ranks{});
  EXPECT_EQ(job.ask(0, {0, 5}).silent, Ranks{4}) << "rank 5 can only be asked through rank 4";
}

TEST(MissingRankQuery, RanksThatHaveNotSubmittedARequestAreNamed) {
  QueryJob job({3}, {1});
  job.at(2).ask({.name = "x"}, job.everybody(), job.start);
  job.deliver();
  EXPECT_TRUE(job.at(2).take_verdicts().empty()) << "rank 3 may still answer";
  job.time_out(2);
  const auto verdicts = job.at(2).take_verdicts();
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].point.name, "x");
  EXPECT_EQ(verdicts[0].silent, Ranks{3});
  EXPECT_EQ(verdicts[0].behind, Ranks{1});
}

TEST(MissingRankQuery, AllRanksReceiveTheVerdict) {
  QueryJob job({5});
  job.ask(1, job.everybody());
  for (const int rank : {0, 2, 3, 4}) {
    const auto verdicts = job.at(rank).take_verdicts();
    ASSERT_EQ(verdicts.size(), 1U) << rank;
    EXPECT_EQ(verdicts[0].silent, Ranks{5});
    EXPECT_EQ(verdicts[0].asker, 1);
  }
}

TEST(MissingRankQuery, OneQueryPerPointIsEnough) {
  QueryJob job({5});
  job.at(1).ask(kPoint, job.everybody(), job.start);
  job.deliver();
  for (const int rank : {0, 1, 2, 3, 4}) job.at(rank).ask(kPoint, job.everybody(), job.start);
  EXPECT_EQ(job.deliver(), 0);
  // The rank that asked may be stopped before it could send its verdict.
  job.at(3).ask(kPoint, job.everybody(), job.start + 2 * kTimeout);
  EXPECT_GT(job.deliver(), 0);
}

TEST(MissingRankQuery, OfRanksThatAskAtOnceTheLowestGetsTheAnswers) {
  Parents parents(64, 0);
  parents[0] = -1;
  QueryJob job({40}, {}, parents);
  for (int rank = 63; rank > 0; --rank) job.at(rank).ask(kPoint, job.everybody(), job.start);
  EXPECT_LT(job.deliver(), 10 * 64) << "every rank has asked all others";
  for (int rank = 2; rank < 64; ++rank) EXPECT_EQ(job.at(rank).open(), rank == 40) << rank;
  job.time_out(1);
  job.deliver();
  for (int rank = 0; rank < 64; ++rank) {
    const auto verdicts = job.at(rank).take_verdicts();
    ASSERT_EQ(verdicts.size(), rank == 40 ? 0U : 1U) << rank;
    if (rank != 40) {
      EXPECT_EQ(verdicts[0].silent, Ranks{40});
    }
  }
}

TEST(MissingRankQuery, TheTimeInWhichARankDidNotRunDoesNotCount) {
  QueryJob job;
  job.at(0).ask(kPoint, job.everybody(), job.start);
  job.at(0).look(job.start);
  job.at(0).look(job.start + 100 * kTimeout);  // the rank was stopped
  job.deliver();
  const auto verdicts = job.at(0).take_verdicts();
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].silent, Ranks{}) << "all ranks have answered";
}

// The ranks of QueryJob, with connections between hosts that have become slow: the time of a round trip is known once a
// message was acknowledged. Until then, it is known to be longer than the time since the message was sent.
class SlowJob {
 public:
  SlowJob(std::set<int> stopped, milliseconds one_way) : stopped_(std::move(stopped)), one_way_(one_way) {
    for (int rank = 0; rank < 6; ++rank) {
      ranks_.push_back(std::make_unique<MissingRankQuery>(
          rank, Parents{-1, 0, 0, 2, 0, 4}, [](const ProgressPoint&) { return Progress::reached; }, kTimeout,
          kMostListed, [this, rank](int neighbour) { return round_trip(rank, neighbour); }));
    }
  }

  MissingRankQuery::Verdict ask(int asker) {
    auto& query = *ranks_[static_cast<std::size_t>(asker)];
    query.ask(kPoint, {0, 1, 2, 3, 4, 5}, now_);
    for (int tick = 0; tick < 10'000 && !query.has_verdicts(); ++tick) {
      deliver();
      query.look(now_);
      now_ += kTimeout / 16;
    }
    const auto verdicts = query.take_verdicts();
    EXPECT_EQ(verdicts.size(), 1U);
    return verdicts.empty() ? MissingRankQuery::Verdict{} : verdicts.front();
  }

 private:
  struct Message {
    int from, to;
    std::string bytes;
    Clock::time_point arrival;
  };

  bool is_slow(int from, int to) const { return from / 2 != to / 2; }

  milliseconds round_trip(int from, int to) const {
    const auto sent = first_sent_.find({from, to});
    if (sent == first_sent_.end()) return milliseconds(0);
    return std::min(2 * one_way_, std::chrono::duration_cast<milliseconds>(now_ - sent->second));
  }

  void deliver() {
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < 6; ++from) {
        for (auto& message : ranks_[static_cast<std::size_t>(from)]->take_messages()) {
          const bool slow = is_slow(from, message.to);
          if (slow) first_sent_.try_emplace({from, message.to}, now_);
          in_flight_.push_back({from, message.to, std::move(message.bytes), slow ? now_ + one_way_ : now_});
        }
      }
      for (auto message = in_flight_.begin(); message != in_flight_.end();) {
        if (message->arrival > now_) {
          ++message;
          continue;
        }
        const auto arrived = std::move(*message);
        message = in_flight_.erase(message);
        if (stopped_.contains(arrived.to)) continue;
        ranks_[static_cast<std::size_t>(arrived.to)]->receive(arrived.from, arrived.bytes, now_);
        any = true;
      }
    }
  }

  std::set<int> stopped_;
  milliseconds one_way_;
  Clock::time_point now_{};
  std::map<std::pair<int, int>, Clock::time_point> first_sent_;
  std::list<Message> in_flight_;
  std::vector<std::unique_ptr<MissingRankQuery>> ranks_;
};

TEST(MissingRankQuery, NoRankBehindASlowConnectionIsBlamed) {
  for (const auto one_way : {kTimeout / 2, kTimeout, 5 * kTimeout, 50 * kTimeout}) {
    for (int asker = 0; asker < 6; ++asker) {
      EXPECT_EQ(SlowJob({}, one_way).ask(asker).silent, Ranks{}) << asker << ", " << one_way.count() << " ms";
      if (asker != 5) {
        EXPECT_EQ(SlowJob({5}, one_way).ask(asker).silent, Ranks{5});
      }
    }
  }
}

TEST(MissingRankQuery, RanksWithoutAConnectionAreNotBlamed) {
  QueryJob job;
  job.at(0).set_neighbours({1, 4});  // rank 0 has no connection to rank 2
  job.at(2).set_neighbours({3});
  EXPECT_EQ(job.ask(1, job.everybody()).silent, Ranks{});
  EXPECT_EQ(job.ask(3, job.everybody()).silent, Ranks{});
}

TEST(MissingRankQuery, RanksBeyondTheLimitAreCounted) {
  constexpr int kSize = 100;
  Parents parents(kSize, 0);
  parents[0] = -1;
  std::set<int> stopped, behind;
  for (int rank = 1; rank < kSize; ++rank) (rank % 2 == 0 ? stopped : behind).insert(rank);
  QueryJob job(stopped, behind, parents);
  const auto verdict = job.ask(0, job.everybody());
  EXPECT_EQ(verdict.silent.size() + verdict.behind.size(), kMostListed);
  EXPECT_EQ(verdict.more, 99 - 16);
  EXPECT_EQ(job.at(1).take_verdicts().at(0).more, verdict.more);
}

TEST(MissingRankQuery, MalformedMessagesAreRejected) {
  QueryJob job;
  for (const auto* bytes : {"", "\x7f", "\x7e", "\x7e\x01\x07\x06", "\x7e\x03\x07\x06\x63"}) {
    EXPECT_THROW(job.at(0).receive(1, bytes, job.start), Error);
  }
}

}  // namespace
}  // namespace perseus
