// Who keeps a collective from going on: ranks that answer, ranks that are stopped, and those behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "control/inquiry.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using Clock = Inquiry::Clock;
using Ranks = std::vector<int>;

constexpr WorkPlace kPlace{7, 3};
constexpr milliseconds kPatience{100};

// Three hosts of two ranks each: 1, 3 and 5 hang on 0, 2 and 4, and these on 0.
class Job {
 public:
  explicit Job(std::set<int> stopped = {}, std::set<int> behind = {}, const Ranks& parents = {-1, 0, 0, 2, 0, 4})
      : stopped_(std::move(stopped)) {
    for (int rank = 0; rank < static_cast<int>(parents.size()); ++rank) {
      const bool late = behind.contains(rank);
      ranks_.push_back(std::make_unique<Inquiry>(
          rank, parents, [late](const WorkPlace&) { return late ? Progress::behind : Progress::reached; }, kPatience));
      Ranks neighbours;
      for (int other = 0; other < static_cast<int>(parents.size()); ++other) {
        if (parents[static_cast<std::size_t>(other)] == rank || parents[static_cast<std::size_t>(rank)] == other) {
          neighbours.push_back(other);
        }
      }
      ranks_.back()->set_neighbours(neighbours);
    }
  }

  Inquiry& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  Ranks everybody() const {
    Ranks all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // Delivers all there is to deliver. Returns how many messages that were.
  int deliver() {
    int count = 0;
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
        for (const auto& message : at(from).take_messages()) {
          if (stopped_.contains(message.to)) continue;
          at(message.to).hear(from, message.bytes, start);
          any = true;
          ++count;
        }
      }
    }
    return count;
  }

  // What `rank` learns when it asks, once its patience is over.
  Inquiry::Verdict ask(int rank, const Ranks& members) {
    at(rank).ask(kPlace, members, start);
    deliver();
    at(rank).look(start + kPatience);
    deliver();
    const auto verdicts = at(rank).take_verdicts();
    EXPECT_EQ(verdicts.size(), 1U);
    return verdicts.empty() ? Inquiry::Verdict{} : verdicts.front();
  }

  const Clock::time_point start = Clock::now();

 private:
  std::set<int> stopped_;
  std::vector<std::unique_ptr<Inquiry>> ranks_;
};

TEST(Inquiry, NobodyIsMissing) {
  for (int asker = 0; asker < 6; ++asker) {
    Job job;
    job.at(asker).ask(kPlace, job.everybody(), job.start);
    job.deliver();
    EXPECT_FALSE(job.at(asker).open()) << "all have answered";
    const auto verdict = job.at(asker).take_verdicts().at(0);
    EXPECT_EQ(verdict.place, kPlace);
    EXPECT_EQ(verdict.silent, Ranks{});
    EXPECT_EQ(verdict.behind, Ranks{});
  }
}

TEST(Inquiry, AStoppedRankIsNamedByAllOthers) {
  for (int stopped = 0; stopped < 6; ++stopped) {
    for (int asker = 0; asker < 6; ++asker) {
      if (asker == stopped) continue;
      Job job({stopped});
      const auto verdict = job.ask(asker, job.everybody());
      EXPECT_EQ(verdict.silent, Ranks{stopped}) << "asked by " << asker;
      EXPECT_EQ(verdict.behind, Ranks{});
    }
  }
}

TEST(Inquiry, OfRanksBehindAStoppedOneNothingIsKnown) {
  Job job({2, 3, 5});
  EXPECT_EQ(job.ask(1, job.everybody()).silent, (Ranks{2, 5}));
}

TEST(Inquiry, ARankThatHasNotComeIsTold) {
  Job job({5}, {3});
  const auto verdict = job.ask(0, job.everybody());
  EXPECT_EQ(verdict.silent, Ranks{5});
  EXPECT_EQ(verdict.behind, Ranks{3});
}

TEST(Inquiry, OthersThanMembersAreOfNoInterest) {
  Job job({4}, {3});
  EXPECT_EQ(job.ask(0, {0, 1, 2}).silent, Ranks{});
  EXPECT_EQ(job.ask(0, {0, 1, 2}).behind, Ranks{});
  EXPECT_EQ(job.ask(0, {0, 5}).silent, Ranks{4}) << "a member can only be asked through it";
}

TEST(Inquiry, AllHearTheVerdict) {
  Job job({5});
  job.ask(1, job.everybody());
  for (const int rank : {0, 2, 3, 4}) {
    const auto verdicts = job.at(rank).take_verdicts();
    ASSERT_EQ(verdicts.size(), 1U) << rank;
    EXPECT_EQ(verdicts[0].silent, Ranks{5});
    EXPECT_EQ(verdicts[0].asker, 1);
  }
}

TEST(Inquiry, OneQuestionIsEnough) {
  Job job({5});
  job.at(1).ask(kPlace, job.everybody(), job.start);
  job.deliver();
  for (const int rank : {0, 1, 2, 3, 4}) job.at(rank).ask(kPlace, job.everybody(), job.start);
  EXPECT_EQ(job.deliver(), 0);
  // Its asker may be stopped before it could tell.
  job.at(3).ask(kPlace, job.everybody(), job.start + 2 * kPatience);
  EXPECT_GT(job.deliver(), 0);
}

TEST(Inquiry, WithoutAWireNobodyIsBlamed) {
  Job job;
  job.at(0).set_neighbours({1, 4});  // 2 was not reached when wires were made
  job.at(2).set_neighbours({3});
  EXPECT_EQ(job.ask(1, job.everybody()).silent, Ranks{});
  EXPECT_EQ(job.ask(3, job.everybody()).silent, Ranks{});
}

TEST(Inquiry, ManyAreCounted) {
  constexpr int kSize = 100;
  Ranks parents(kSize, 0);
  parents[0] = -1;
  std::set<int> stopped, behind;
  for (int rank = 1; rank < kSize; ++rank) (rank % 2 == 0 ? stopped : behind).insert(rank);
  Job job(stopped, behind, parents);
  const auto verdict = job.ask(0, job.everybody());
  EXPECT_EQ(verdict.silent.size() + verdict.behind.size() + static_cast<std::size_t>(verdict.more), 99U);
  EXPECT_EQ(job.at(1).take_verdicts().at(0).more, verdict.more);
}

TEST(Inquiry, NonsenseIsRefused) {
  Job job;
  for (const auto* bytes : {"", "\x7f", "\x01\x07\x06\x63"}) {
    EXPECT_THROW(job.at(0).hear(1, bytes, job.start), Error);
  }
}

}  // namespace
}  // namespace perseus
