// Tests the warnings and errors for requests that wait too long.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "control/negotiator.h"
#include "control_job.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;
using testing::allreduce;
using testing::ControlJob;
using testing::request;
using Kind = Decision::Kind;

NegotiatorOptions stalls(std::chrono::milliseconds warning, std::chrono::milliseconds shutdown) {
  return {.stalls = {.warning = warning, .shutdown = shutdown}};
}

void look(ControlJob& job) {
  for (int r = 0; r < job.size(); ++r) job.rank(r).check_stalls(job.now);
}

// Lets the root suspect a name. Returns the decisions.
std::vector<Decision> suspect(ControlJob& job) {
  job.settle();
  job.now += 500ms;
  for (int round = 0; round < 2; ++round) {
    look(job);
    job.settle();
  }
  return job.take_all();
}

TEST(Stalls, AWarningNamesTensorRanksAndTime) {
  ControlJob job({0, 0, 0}, stalls(60s, 0s), 1, 2, 4);
  job.submit(0, allreduce("x"));
  job.submit(2, allreduce("x"));
  job.settle();
  job.now += 59s;
  look(job);
  EXPECT_TRUE(job.take_all().empty());
  job.now += 1500ms;
  look(job);
  const auto decision = job.take_one();
  EXPECT_EQ(decision.kind, Kind::warn);
  EXPECT_EQ(decision.name(), "x");
  EXPECT_EQ(decision.text,
            "allreduce 'x' has waited 60.5 s: submitted by ranks 4, 6, not by rank 5. All ranks must call the same "
            "collectives; check whether the missing ranks are still busy or have taken another branch.");
  look(job);
  EXPECT_TRUE(job.take_all().empty()) << "there is one warning in each period";
  job.now += 60s;
  look(job);
  EXPECT_EQ(job.take_all().size(), 1U);
}

TEST(Stalls, TheFirstWarningMayComeEarlier) {
  auto options = stalls(60s, 0s);
  options.stalls.first_warning = 10s;
  ControlJob job({0, 0, 1}, options);
  job.submit(0, allreduce("x"));
  job.settle();
  std::vector<std::int64_t> warned;
  const auto begin = job.now;
  for (int second = 1; second <= 140; ++second) {
    job.now += 1s;
    look(job);
    if (!job.take_all().empty()) {
      warned.push_back(std::chrono::duration_cast<std::chrono::seconds>(job.now - begin).count());
    }
  }
  EXPECT_EQ(warned, (std::vector<std::int64_t>{10, 70, 130}));
}

TEST(Stalls, TheLastPlanSaysWhatHasWaitedLongest) {
  ControlJob job({0, 0, 1}, stalls(60s, 0s), 1, 2, 4);
  job.submit(1, allreduce("x"));
  job.submit(2, allreduce("x"));
  job.settle();
  job.now += 50s;
  job.submit(0, allreduce("y"));
  job.settle();
  job.now += 7s;
  job.rank(0).leave();
  job.settle();
  const auto decisions = job.take_all();
  ASSERT_EQ(decisions.size(), 2U);
  EXPECT_EQ(decisions.front().kind, Kind::warn);
  EXPECT_EQ(decisions.front().text, "ranks 5, 6 were waiting for rank 4 in allreduce 'x' for 57 s");
  EXPECT_EQ(decisions.back().kind, Kind::close);
}

TEST(Stalls, ShortWaitsAreNotInTheLastPlan) {
  ControlJob job({0, 0}, stalls(60s, 0s));
  job.submit(1, allreduce("x"));
  job.settle();
  job.now += 4s;
  job.rank(0).leave();
  job.settle();
  EXPECT_EQ(job.take_one().kind, Kind::close);
}

TEST(Stalls, RanksBelowAnotherHostAreNamed) {
  ControlJob job({0, 0, 1, 1, 1}, stalls(10s, 0s));
  for (const int r : {0, 1, 3}) job.submit(r, allreduce("x"));
  job.settle();
  job.now += 11s;
  // One warning per period combines the reports of all nodes.
  for (int period = 0; period < 3; ++period) {
    std::vector<std::string> texts;
    for (int round = 0; round < 5; ++round) {
      look(job);
      for (const auto& decision : job.take_all()) texts.push_back(decision.text);
      job.now += 100ms;
    }
    ASSERT_EQ(texts.size(), 1U);
    EXPECT_NE(texts.front().find("submitted by ranks 0, 1, 3, not by ranks 2, 4."), std::string::npos) << texts.front();
    job.now += 10s;
  }
}

TEST(Stalls, AStallFailsOnAllRanksAfterTheShutdownTime) {
  for (const auto warning : {0ms, 1000ms}) {
    ControlJob job({0, 0}, stalls(warning, 1500ms));
    job.submit(1, allreduce("x"));
    job.settle();
    job.now += 1100ms;
    look(job);
    EXPECT_EQ(job.take_all().size(), warning.count() > 0 ? 1U : 0U);
    job.now += 400ms;
    look(job);
    const auto decision = job.take_one();
    EXPECT_EQ(decision.kind, Kind::close);
    EXPECT_EQ(decision.error, ErrorKind::timed_out);
    EXPECT_NE(
        decision.text.find("allreduce 'x' timed out after a timeout of 1.5 s: submitted by rank 1, not by rank 0"),
        std::string::npos);
  }
}

TEST(Stalls, CompletedRequestsAreNotReported) {
  ControlJob job({0, 0, 1}, stalls(10s, 0s));
  job.submit(1, allreduce("x"));
  job.settle();
  job.now += 9s;
  for (const int r : {0, 2}) job.submit(r, allreduce("x"));
  EXPECT_EQ(job.take_all().size(), 1U);
  job.submit(1, allreduce("x"));
  job.settle();
  job.now += 9s;
  look(job);
  EXPECT_TRUE(job.take_all().empty());
  EXPECT_TRUE(job.rank(0).waiting());
}

TEST(Stalls, JoinedRanksAreNotMissing) {
  ControlJob job({0, 0, 0}, stalls(10s, 0s));
  job.rank(0).join();
  job.submit(1, allreduce("x"));
  job.settle();
  job.now += 10s;
  look(job);
  const auto decision = job.take_one();
  EXPECT_NE(decision.text.find("submitted by rank 1, not by rank 2."), std::string::npos) << decision.text;
}

// Adapters put the verb in front of a name, so these are different names, and none of them would ever be complete.
TEST(Mismatches, AnotherVerbUnderOneNameFailsOnAllRanks) {
  ControlJob job({0, 0, 0}, stalls(60s, 0s));
  for (const int r : {0, 2}) job.submit(r, allreduce("allreduce.x"));
  job.submit(1, request(Verb::broadcast, "broadcast.x", {{DType::float32, {3}}}));
  const auto suspicion = suspect(job);
  ASSERT_EQ(suspicion.size(), 1U);
  EXPECT_EQ(suspicion.front().kind, Kind::suspect);
  EXPECT_EQ(suspicion.front().name(), "x");
  for (const int r : {0, 2}) job.rank(r).record_waiter("allreduce.x");
  job.now += 50s;
  look(job);
  EXPECT_TRUE(job.take_all().empty()) << "rank 1 may still submit the other verb";
  job.rank(1).record_waiter("broadcast.x");
  const auto decisions = job.take_all();
  ASSERT_EQ(decisions.size(), 2U);
  for (const auto& decision : decisions) {
    EXPECT_EQ(decision.kind, Kind::fail);
    EXPECT_EQ(decision.error, ErrorKind::disagreement);
    EXPECT_EQ(decision.text,
              "allreduce 'x': ranks 0, 2 call allreduce, rank 1 calls broadcast; all ranks must pass the same");
  }
  EXPECT_EQ(decisions[0].name(), "allreduce.x");
  EXPECT_EQ(decisions[1].name(), "broadcast.x");
  job.submit_all(allreduce("allreduce.x"));
  EXPECT_EQ(job.take_one().kind, Kind::run) << "the failed requests must be forgotten";
}

// A host whose ranks disagree reports no submissions, and cached names are reported by id.
TEST(Mismatches, AreDetectedOnOtherHostsAndForCachedNames) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    ControlJob job({0, 0, 1, 1, 1}, stalls(0s, 0s), seed);
    for (int i = 0; i < 3; ++i) {
      job.submit_all(allreduce("allreduce.x"));
      job.take_all();
    }
    for (const int r : {0, 1, 2, 4}) job.submit(r, allreduce("allreduce.x"));
    job.submit(3, request(Verb::barrier, "barrier.x", {}));
    EXPECT_EQ(suspect(job).size(), 1U);
    for (int r = 0; r < job.size(); ++r) job.rank(r).record_waiter(r == 3 ? "barrier.x" : "allreduce.x");
    const auto decisions = job.take_all();
    ASSERT_EQ(decisions.size(), 2U);
    EXPECT_EQ(decisions.front().text,
              "allreduce 'x': ranks 0-2, 4 call allreduce, rank 3 calls barrier; all ranks must pass the same");
    job.submit_all(allreduce("allreduce.x"));
    EXPECT_EQ(job.take_all().size(), 1U);
  }
}

TEST(Mismatches, AreNotReportedWhileARankIsMissing) {
  ControlJob job({0, 0, 1, 1}, stalls(60s, 0s));
  job.submit(0, allreduce("allreduce.x"));
  job.submit(1, request(Verb::broadcast, "broadcast.x", {{DType::float32, {3}}}));
  job.submit(2, allreduce("allreduce.x"));
  job.settle();
  job.now += 10s;
  look(job);
  EXPECT_TRUE(job.take_all().empty());
  // Rank 3 does not make it a mismatch: each rank submits both in its own order.
  job.submit(3, allreduce("allreduce.x"));
  job.submit(1, allreduce("allreduce.x"));
  for (const int r : {0, 2, 3}) job.submit(r, request(Verb::broadcast, "broadcast.x", {{DType::float32, {3}}}));
  job.settle();
  look(job);
  const auto decisions = job.take_all();
  ASSERT_EQ(decisions.size(), 2U);
  for (const auto& decision : decisions) EXPECT_EQ(decision.kind, Kind::run);
}

// Threads that wait for a framework are not seen.
TEST(Mismatches, FailAfterTheTimeOfTheStallCheckIfRanksAreNotBlocked) {
  ControlJob job({0, 0, 1, 1}, stalls(60s, 0s));
  for (int r = 0; r < 4; ++r) {
    job.submit(r, r == 3 ? request(Verb::barrier, "barrier.x", {}) : allreduce("allreduce.x"));
  }
  EXPECT_EQ(suspect(job).size(), 1U);
  look(job);
  job.now += 59s;
  look(job);
  EXPECT_TRUE(job.take_all().empty());
  job.now += 2s;
  std::set<Kind> kinds;
  for (int round = 0; round < 3; ++round) {
    look(job);
    for (const auto& decision : job.take_all()) kinds.insert(decision.kind);
    job.now += 100ms;
  }
  EXPECT_TRUE(kinds.contains(Kind::fail));
}

// The ranks with an odd number submit the broadcast first and the allreduce much later, for which the other ranks wait.
// All ranks are then blocked, but in a request that is complete.
TEST(Mismatches, RanksThatSubmitTheOtherVerbLaterDoNotFail) {
  const auto broadcast = request(Verb::broadcast, "broadcast.x", {{DType::float32, {3}}});
  for (unsigned seed = 1; seed <= 50; ++seed) {
    ControlJob job({0, 0, 1, 1, 2}, stalls(0s, 0s), seed);
    for (int use = 0; use < 3; ++use) {
      for (int r = 0; r < job.size(); ++r) job.submit(r, r % 2 == 0 ? allreduce("allreduce.x") : broadcast);
      EXPECT_EQ(suspect(job).size(), 1U);
      for (const int r : {0, 2, 4}) job.rank(r).record_waiter("allreduce.x");
      while (job.random_below(3) > 0) job.step();
      for (const int r : {1, 3}) {
        job.submit(r, allreduce("allreduce.x"));
        job.rank(r).record_waiter("broadcast.x");
      }
      const auto first = job.take_one();
      EXPECT_EQ(first.kind, Kind::run) << first.text;
      for (const int r : {0, 2, 4}) job.submit(r, broadcast);
      const auto second = job.take_one();
      EXPECT_EQ(second.kind, Kind::run) << second.text;
      for (int r = 0; r < job.size(); ++r) EXPECT_FALSE(job.rank(r).suspects());
    }
  }
}

// A rank that joins submits nothing more.
TEST(Mismatches, AJoinedRankIsBlocked) {
  ControlJob job({0, 0, 0}, stalls(0s, 0s));
  job.submit(0, allreduce("allreduce.x"));
  job.submit(1, request(Verb::broadcast, "broadcast.x", {{DType::float32, {3}}}));
  job.submit(2, allreduce("allreduce.x"));
  EXPECT_EQ(suspect(job).size(), 1U);
  job.rank(0).record_waiter("allreduce.x");
  job.rank(1).record_waiter("broadcast.x");
  job.rank(2).join();
  job.settle();
  look(job);
  const auto decisions = job.take_all();
  ASSERT_EQ(decisions.size(), 2U);
  for (const auto& decision : decisions) EXPECT_EQ(decision.kind, Kind::fail);
}

// A rank's own submission may be on its way up while the root fails the name. The failure ends that submission on its
// rank, so it must not count for the next use of the name.
TEST(Mismatches, ASubmissionOnItsWayDuringTheFailureDoesNotCountForTheNextUse) {
  struct Case {
    std::vector<int> hosts;
    int late, parent;  // the rank that submits at that moment, and the node of the tree that it reports to
  };
  for (const auto& [hosts, late, parent] : {Case{{0, 0, 0}, 2, 0}, Case{{0, 0, 1, 1, 1}, 3, 2}}) {
    for (const bool known : {false, true}) {
      ControlJob job(hosts, stalls(0s, 0s));
      for (int i = 0; known && i < 3; ++i) {
        job.submit_all(allreduce("allreduce.x"));
        job.take_all();
      }
      for (int r = 0; r < job.size(); ++r) {
        job.submit(r, r == late ? request(Verb::barrier, "barrier.x", {}) : allreduce("allreduce.x"));
      }
      EXPECT_EQ(suspect(job).size(), 1U);
      for (int r = 1; r < job.size(); ++r) job.rank(r).record_waiter(r == late ? "barrier.x" : "allreduce.x");
      job.settle();
      job.submit(late, allreduce("allreduce.x"));
      const auto on_its_way = job.rank(late).flush(job.now);
      ASSERT_EQ(on_its_way.size(), 1U);
      job.rank(0).record_waiter("allreduce.x");
      const auto failures = job.take_all();
      EXPECT_EQ(failures.size(), 2U);
      for (const auto& decision : failures) EXPECT_EQ(decision.kind, Kind::fail);
      job.rank(parent).receive(late, on_its_way.front().bytes, job.now);

      for (int r = 0; r < job.size(); ++r) {
        if (r != late) job.submit(r, allreduce("allreduce.x"));
      }
      EXPECT_TRUE(job.take_all().empty()) << "rank " << late << " has not submitted the name again";
      job.submit(late, allreduce("allreduce.x"));
      EXPECT_EQ(job.take_one().kind, Kind::run);
    }
  }
}

}  // namespace
}  // namespace perseus
