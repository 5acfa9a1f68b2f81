// Tests progress probes with ranks that answer, ranks that are stopped, and ranks behind stopped ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "control/progress_probe.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using Clock = ProgressProbe::Clock;
using Ranks = std::vector<int>;

constexpr ProgressPoint kPlace{7, 3};
constexpr milliseconds kTimeout{100};

// Three hosts of two ranks each. The parents of ranks 1, 3 and 5 are 0, 2 and 4, and the parent of 2 and 4 is 0.
class Job {
 public:
  explicit Job(std::set<int> stopped = {}, std::set<int> behind = {}, const Ranks& parents = {-1, 0, 0, 2, 0, 4})
      : stopped_(std::move(stopped)) {
    for (int rank = 0; rank < static_cast<int>(parents.size()); ++rank) {
      const bool late = behind.contains(rank);
      ranks_.push_back(std::make_unique<ProgressProbe>(
          rank, parents, [late](const ProgressPoint&) { return late ? Progress::behind : Progress::reached; },
          kTimeout));
      Ranks neighbours;
      for (int other = 0; other < static_cast<int>(parents.size()); ++other) {
        if (parents[static_cast<std::size_t>(other)] == rank || parents[static_cast<std::size_t>(rank)] == other) {
          neighbours.push_back(other);
        }
      }
      ranks_.back()->set_neighbours(neighbours);
    }
  }

  ProgressProbe& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  Ranks everybody() const {
    Ranks all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // Delivers all messages. Returns their number.
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

  // Returns the verdict of a probe of `rank` after its timeout.
  ProgressProbe::Verdict ask(int rank, const Ranks& members) {
    at(rank).ask(kPlace, members, start);
    deliver();
    at(rank).look(start + kTimeout);
    deliver();
    const auto verdicts = at(rank).take_verdicts();
    EXPECT_EQ(verdicts.size(), 1U);
    return verdicts.empty() ? ProgressProbe::Verdict{} : verdicts.front();
  }

  const Clock::time_point start = Clock::now();

 private:
  std::set<int> stopped_;
  std::vector<std::unique_ptr<ProgressProbe>> ranks_;
};

TEST(ProgressProbe, NoRankIsMissing) {
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

TEST(ProgressProbe, AllOtherRanksNameAStoppedRank) {
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

TEST(ProgressProbe, RanksBehindAStoppedRankAreNotBlamed) {
  Job job({2, 3, 5});
  EXPECT_EQ(job.ask(1, job.everybody()).silent, (Ranks{2, 5}));
}

TEST(ProgressProbe, ARankThatIsBehindIsNamed) {
  Job job({5}, {3});
  const auto verdict = job.ask(0, job.everybody());
  EXPECT_EQ(verdict.silent, Ranks{5});
  EXPECT_EQ(verdict.behind, Ranks{3});
}

TEST(ProgressProbe, RanksThatAreNotMembersAreIgnored) {
  Job job({4}, {3});
  EXPECT_EQ(job.ask(0, {0, 1, 2}).silent, Ranks{});
  EXPECT_EQ(job.ask(0, {0, 1, 2}).behind, Ranks{});
  EXPECT_EQ(job.ask(0, {0, 5}).silent, Ranks{4}) << "a member can only be asked through it";
}

TEST(ProgressProbe, AllRanksReceiveTheVerdict) {
  Job job({5});
  job.ask(1, job.everybody());
  for (const int rank : {0, 2, 3, 4}) {
    const auto verdicts = job.at(rank).take_verdicts();
    ASSERT_EQ(verdicts.size(), 1U) << rank;
    EXPECT_EQ(verdicts[0].silent, Ranks{5});
    EXPECT_EQ(verdicts[0].asker, 1);
  }
}

TEST(ProgressProbe, OneProbePerStepIsEnough) {
  Job job({5});
  job.at(1).ask(kPlace, job.everybody(), job.start);
  job.deliver();
  for (const int rank : {0, 1, 2, 3, 4}) job.at(rank).ask(kPlace, job.everybody(), job.start);
  EXPECT_EQ(job.deliver(), 0);
  // The rank that asked may be stopped before it could send its verdict.
  job.at(3).ask(kPlace, job.everybody(), job.start + 2 * kTimeout);
  EXPECT_GT(job.deliver(), 0);
}

TEST(ProgressProbe, RanksWithoutAConnectionAreNotBlamed) {
  Job job;
  job.at(0).set_neighbours({1, 4});  // rank 2 was not reached when connections were made
  job.at(2).set_neighbours({3});
  EXPECT_EQ(job.ask(1, job.everybody()).silent, Ranks{});
  EXPECT_EQ(job.ask(3, job.everybody()).silent, Ranks{});
}

TEST(ProgressProbe, RanksBeyondTheLimitAreCounted) {
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

TEST(ProgressProbe, MalformedMessagesAreRejected) {
  Job job;
  for (const auto* bytes : {"", "\x7f", "\x01\x07\x06\x63"}) {
    EXPECT_THROW(job.at(0).hear(1, bytes, job.start), Error);
  }
}

}  // namespace
}  // namespace perseus
