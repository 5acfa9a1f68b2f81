// Tests that all ranks get the same decisions in any order of submissions and messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
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
using testing::same;
using Kind = Decision::Kind;

// Trees of one to nine ranks: one host, one rank per host, and even and uneven numbers of ranks per host.
const std::vector<std::vector<int>> kJobs = {
    {0},
    {0, 0},
    {0, 1},
    {0, 0, 0},
    {0, 1, 1},
    {0, 0, 1, 1},
    {0, 1, 2, 3, 4},
    {0, 0, 0, 1, 2, 2},
    {0, 1, 0, 1, 0, 1, 2},
    {0, 0, 0, 0, 0, 0, 0, 0},
    {0, 1, 1, 2, 2, 2, 3, 4, 5},
};

std::vector<std::string> names_of(const std::vector<Decision>& decisions) {
  std::vector<std::string> names;
  for (const auto& decision : decisions) names.push_back(decision.name());
  return names;
}

// Runs rounds of requests. In each round a rank submits all names in its own order, a few at a time, and continues when
// all are decided. Ranks in `disagreeing` submit other shapes in odd rounds.
class Rounds {
 public:
  Rounds(ControlJob& job, int rounds, int names, std::set<int> disagreeing = {})
      : job_(job),
        rounds_(rounds),
        names_(names),
        disagreeing_(std::move(disagreeing)),
        at_(static_cast<std::size_t>(job.size())) {
    for (int r = 0; r < job.size(); ++r) start(r, 0);
  }

  // Returns the decisions, which are the same on all ranks.
  std::vector<Decision> run() {
    std::vector<std::vector<Decision>> decisions(at_.size());
    for (bool going = true; going;) {
      going = false;
      for (int turns = job_.size(); turns > 0; --turns) going = act(job_.random_below(at_.size())) || going;
      for (int steps = job_.random_below(4); steps > 0; --steps) going = job_.step() || going;
      for (int r = 0; r < job_.size(); ++r) {
        for (auto& decision : job_.take(r)) {
          of(r).waiting.erase(decision.name());
          decisions[static_cast<std::size_t>(r)].push_back(std::move(decision));
        }
        going = going || of(r).round < rounds_;
      }
    }
    for (const auto& of_rank : decisions)
      EXPECT_EQ(ControlJob::texts_of(of_rank), ControlJob::texts_of(decisions.front()));
    return decisions.front();
  }

 private:
  struct At {
    int round = 0;
    std::vector<std::string> to_submit;
    std::set<std::string> waiting;
  };
  At& of(int r) { return at_[static_cast<std::size_t>(r)]; }

  void start(int r, int round) {
    auto& at = of(r);
    at.round = round;
    if (round == rounds_) return;
    for (int i = 0; i < names_; ++i) at.to_submit.push_back("t" + std::to_string(i));
    std::shuffle(at.to_submit.begin(), at.to_submit.end(), job_.random());
  }

  bool act(int r) {
    auto& at = of(r);
    if (at.round == rounds_) return false;
    if (at.to_submit.empty()) {
      if (at.waiting.empty()) start(r, at.round + 1);
      return true;
    }
    const auto name = at.to_submit.back();
    at.to_submit.pop_back();
    at.waiting.insert(name);
    const bool disagrees = disagreeing_.contains(r) && at.round % 2 == 1;
    job_.submit(r, allreduce(name, {disagrees ? 4 : 3}));
    return true;
  }

  ControlJob& job_;
  int rounds_, names_;
  std::set<int> disagreeing_;
  std::vector<At> at_;
};

class Jobs : public ::testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Trees, Jobs, ::testing::ValuesIn(kJobs));

TEST_P(Jobs, AllRanksGetTheSamePlan) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    ControlJob job(GetParam(), {}, seed);
    const auto decisions = Rounds(job, 5, 7).run();
    ASSERT_EQ(decisions.size(), 35U);
    std::map<std::string, int> times;
    for (const auto& decision : decisions) {
      EXPECT_EQ(decision.kind, Kind::run);
      EXPECT_TRUE(same(*decision.request, allreduce(decision.name())));
      // The first decision has no id, the second one a new id, and later ones are cached.
      const int time = ++times[decision.name()];
      EXPECT_EQ(decision.id != Decision::kNoId, time >= 2);
      EXPECT_EQ(decision.cached, time >= 3);
    }
  }
}

TEST_P(Jobs, ADisagreementFailsOnAllRanksAndTheJobContinues) {
  const auto size = static_cast<int>(GetParam().size());
  if (size == 1) return;
  for (unsigned seed = 0; seed < 10; ++seed) {
    ControlJob job(GetParam(), {}, seed);
    const auto decisions = Rounds(job, 6, 3, {size - 1}).run();
    ASSERT_EQ(decisions.size(), 18U);
    std::map<std::string, int> times;
    for (const auto& decision : decisions) {
      const bool lie = times[decision.name()]++ % 2 == 1;
      EXPECT_EQ(decision.kind, lie ? Kind::fail : Kind::run);
      if (!lie) continue;
      EXPECT_NE(decision.text.find("rank " + std::to_string(size - 1) + " has float32[4]"), std::string::npos)
          << decision.text;
      EXPECT_EQ(decision.error, ErrorKind::disagreement);
    }
  }
}

// The texts of a request are not compared. Ranks have texts of their own, or change them together.
TEST_P(Jobs, TextsMayDiffer) {
  const auto size = static_cast<int>(GetParam().size());
  ControlJob job(GetParam());
  for (int time = 0; time < 8; ++time) {
    for (int r = 0; r < size; ++r) {
      auto asked = allreduce("x");
      asked.member_names = "model " + std::to_string(time / 2) + " of rank " + std::to_string(r);
      job.submit(r, asked);
    }
    job.settle();
    for (int r = 0; r < size; ++r) {
      const auto decisions = job.take(r);
      ASSERT_EQ(decisions.size(), 1U);
      EXPECT_EQ(decisions.front().kind, Kind::run);
      EXPECT_EQ(decisions.front().cached, time > 1);
    }
  }
}

// A rank contradicts what it has submitted. The root knows of both before another rank submits, or has decided already.
TEST_P(Jobs, AContradictedRequestFailsUnlessItIsDecided) {
  const auto last = static_cast<int>(GetParam().size()) - 1;
  if (last == 0) return;
  auto other = request(Verb::barrier, "x", {});
  other.call = "it twice";
  for (unsigned seed = 0; seed < 30; ++seed) {
    ControlJob job(GetParam(), {}, seed);
    for (unsigned time = 0; time < 3 * (seed % 2); ++time) {
      job.submit_all(allreduce("x"));  // later its id is in the response cache
      EXPECT_EQ(job.take_one().kind, Kind::run);
    }
    for (const int contradicting : {last, 0}) {
      for (int r = 0; r <= last; ++r) {
        if (r == contradicting) job.submit(r, allreduce("x"));
      }
      job.rank(contradicting).contradict(other);
      const bool is_early = seed % 4 < 2;
      if (is_early) job.settle();
      for (int r = 0; r <= last; ++r) {
        if (r != contradicting) job.submit(r, allreduce("x"));
      }
      const auto decision = job.take_one();
      if (is_early) {
        EXPECT_EQ(decision.kind, Kind::fail);
      }
      if (decision.kind == Kind::run) continue;
      EXPECT_NE(decision.text.find("rank " + std::to_string(contradicting) + " calls it twice"), std::string::npos)
          << decision.text;
    }
    job.submit_all(allreduce("x"));
    job.settle();
    job.rank(last).contradict(other);
    job.submit_all(allreduce("y"));
    EXPECT_EQ(names_of(job.take_all()), (std::vector<std::string>{"x", "y"}));
    job.submit_all(allreduce("x"));
    EXPECT_EQ(job.take_one().kind, Kind::run);
  }
}

// Ids go to other names while reports are on their way in which they mean the names before.
TEST_P(Jobs, ASmallCacheGivesTheSamePlan) {
  const auto last = static_cast<int>(GetParam().size()) - 1;
  const NegotiatorOptions options{.cache_capacity = 2};
  for (unsigned seed = 0; seed < 30; ++seed) {
    const bool disagree = last > 0 && seed % 3 == 0;
    ControlJob job(GetParam(), options, seed);
    const auto decisions = Rounds(job, 12, 5, disagree ? std::set{last} : std::set<int>{}).run();
    ASSERT_EQ(decisions.size(), 60U);
    int given = 0, cached = 0;
    for (const auto& decision : decisions) {
      if (decision.kind != Kind::run) continue;
      EXPECT_EQ(decision.request->members.size(), 1U) << decision.name();
      given += decision.id != Decision::kNoId && !decision.cached;
      cached += decision.cached;
    }
    if (!disagree) {
      EXPECT_GT(given, 2) << "no id has gone to another name";
      EXPECT_GT(cached, 0);
    }
  }
}

TEST_P(Jobs, CachedRequestsCostAFewBytes) {
  ControlJob job(GetParam());
  for (int time = 0; time < 2; ++time) {
    for (int i = 0; i < 100; ++i) job.submit_all(allreduce("name of a tensor " + std::to_string(i)));
    job.take_all();
  }
  job.bytes_sent = 0;
  for (int i = 0; i < 100; ++i) job.submit_all(allreduce("name of a tensor " + std::to_string(i)));
  EXPECT_EQ(job.take_all().size(), 100U);
  // The second round is in the order of arrival, which differs from the order of the ids.
  EXPECT_LE(job.bytes_sent, static_cast<std::size_t>(job.size()) * 100 * 8);
}

TEST_P(Jobs, JoinedRanksDoNotDelayOthers) {
  const auto size = static_cast<int>(GetParam().size());
  for (unsigned seed = 0; seed < 10; ++seed) {
    ControlJob job(GetParam(), {}, seed);
    for (int last = 0; last < size; ++last) {
      // Ranks join one after the other; the other ranks still reduce.
      const auto name = "left " + std::to_string(last);
      for (int r = last; r < size; ++r) job.submit(r, allreduce(name));
      auto decisions = job.take_all();
      ASSERT_EQ(names_of(decisions), std::vector<std::string>{name});
      EXPECT_EQ(decisions.front().kind, Kind::run);
      job.rank(last).join();
    }
    const auto decision = job.take_one();
    EXPECT_EQ(decision.kind, Kind::joined);
    EXPECT_EQ(decision.rank, size - 1);
    job.submit_all(request(Verb::allgather, "after", {{DType::int8, {1}}}));
    EXPECT_EQ(job.take_one().kind, Kind::run);
  }
}

TEST(Negotiator, AJoinCompletesRequestsOfOtherRanks) {
  ControlJob job({0, 0, 1, 1});
  for (const int r : {0, 1, 3}) job.submit(r, allreduce("x"));
  job.settle();
  EXPECT_TRUE(job.take(0).empty());
  job.rank(2).join();
  EXPECT_EQ(names_of(job.take_all()), std::vector<std::string>{"x"});
}

TEST(Negotiator, OnlyReductionsAcceptJoinedRanks) {
  ControlJob job({0, 0, 0});
  job.rank(1).join();
  job.settle();
  for (const int r : {0, 2}) job.submit(r, request(Verb::allgather, "g", {{DType::float32, {2}}}));
  const auto decision = job.take_one();
  EXPECT_EQ(decision.kind, Kind::fail);
  EXPECT_EQ(decision.text,
            "allgather 'g' is not supported while a rank has joined (join() contributes zeros to allreduce only); call "
            "it before any rank joins");
}

// An allgather that a rank submitted before it joined is complete, in whatever order the root learns of both.
TEST_P(Jobs, RequestsSubmittedByAllRunEvenIfRanksJoin) {
  const auto size = static_cast<int>(GetParam().size());
  const auto gather = request(Verb::allgather, "g", {{DType::float32, {2}}});
  for (unsigned seed = 0; seed < 30; ++seed) {
    ControlJob job(GetParam(), {}, seed);
    // Odd seeds start with a request that is in the response cache.
    for (unsigned time = 0; time < 3 * (seed % 2); ++time) {
      job.submit_all(gather);
      job.take_all();
    }
    for (int r = 0; r < size; ++r) {
      job.submit(r, gather);
      if (r % 2 == 0) job.rank(r).join();
      for (int steps = job.random_below(4); steps > 0; --steps) job.step();
    }
    const auto decisions = job.take_all();
    ASSERT_FALSE(decisions.empty());
    EXPECT_EQ(decisions.front().kind, Kind::run) << decisions.front().text;
    if (size == 1) continue;
    // The next one lacks the ranks that have joined.
    for (int r = 1; r < size; r += 2) job.submit(r, gather);
    const auto next = job.take_one();
    EXPECT_EQ(next.kind, Kind::fail);
    EXPECT_NE(next.text.find("has joined"), std::string::npos);
  }
}

// A rank may have work in flight when it joins, with its own shape and data instead of zeros.
TEST(Negotiator, RequestsInFlightBeforeAJoinAreCompared) {
  ControlJob job({0, 0});
  for (int time = 0; time < 3; ++time) {
    job.submit_all(allreduce("x"));
    job.take_all();
  }
  job.submit(1, allreduce("x"));
  job.rank(1).join();
  job.settle();
  job.submit(0, allreduce("x", {5}));
  const auto decision = job.take_one();
  EXPECT_EQ(decision.kind, Kind::fail);
  EXPECT_EQ(
      decision.text,
      "allreduce 'x': rank 0 has float32[5], rank 1 has float32[3]; dtype and shape must be the same on all ranks");
}

// Other ranks do not wait for a joined rank, so that it may receive two decisions for one id at once.
TEST(Negotiator, AJoinedRankKeepsThePreviousRequestOfAnId) {
  ControlJob job({0, 0});
  for (int time = 0; time < 2; ++time) {
    job.submit_all(allreduce("x"));
    job.take_all();
  }
  job.rank(1).join();
  job.settle();
  std::vector<Negotiator::Outgoing> plans;
  for (const Shape& shape : {Shape{3}, Shape{7}}) {
    job.submit(0, allreduce("x", shape));
    for (auto& message : job.rank(0).flush(job.now)) plans.push_back(std::move(message));
    job.rank(0).take_decisions();
  }
  ASSERT_EQ(plans.size(), 2U);
  for (const auto& plan : plans) job.rank(1).receive(0, plan.bytes, job.now);
  // A rank that is behind takes one plan at a time, because batches are derived from one plan.
  const auto first = job.rank(1).take_decisions(), second = job.rank(1).take_decisions();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_TRUE(first.front().cached);
  EXPECT_TRUE(same(*first.front().request, allreduce("x", {3})));
  ASSERT_EQ(second.size(), 1U);
  EXPECT_TRUE(same(*second.front().request, allreduce("x", {7})));
}

TEST_P(Jobs, ALeavingRankClosesTheGroup) {
  const auto size = static_cast<int>(GetParam().size());
  for (int leaver = 0; leaver < size; ++leaver) {
    ControlJob job(GetParam(), {}, 3, 2, 10);
    job.submit_all(allreduce("done"));
    EXPECT_EQ(job.take_all().size(), 1U);
    if (size > 1) job.submit(leaver, allreduce("pending"));
    job.settle();
    job.rank(leaver).leave();
    const auto close = job.take_one();
    EXPECT_EQ(close.kind, Kind::close);
    EXPECT_EQ(close.error, ErrorKind::peer_lost);
    EXPECT_EQ(close.rank, 10 + leaver);
    EXPECT_EQ(close.text, "rank " + std::to_string(10 + leaver) + " has left the job (it shut down or ended)");
    for (int r = 0; r < size; ++r) EXPECT_FALSE(job.rank(r).waiting());
  }
}

TEST(Negotiator, AllRanksLeaveAtOnce) {
  ControlJob job({0, 0, 1, 1});
  for (int r = 0; r < job.size(); ++r) job.rank(r).leave();
  EXPECT_EQ(job.take_one().kind, Kind::close);
}

TEST(Negotiator, MalformedMessagesAreRejected) {
  ControlJob job({0, 0, 0});
  const auto refused = [&](int from, const auto& message, int to = 0) {
    try {
      job.rank(to).receive(from, encode(message), job.now);
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::transport;
    }
  };
  EXPECT_TRUE(refused(7, Report{})) << "rank 7 is not a child of rank 0";
  Report joined, left, stall, submission, nobody, unknown;
  joined.joined = {3};
  left.left = {-1};
  stall.stalls = {{"x", "allreduce 'x'", {99}, 1}};
  submission.submissions = {{{allreduce("x"), {1 << 20}}}};
  nobody.submissions = {{{allreduce("x"), {}}}};
  unknown.cached = {5};
  for (const auto& report : {joined, left, stall, submission, nobody, unknown}) EXPECT_TRUE(refused(1, report));
  for (const auto id : {0U, Decision::kNoId}) {
    Plan plan;
    plan.decisions.emplace_back().cached = true;
    plan.decisions.front().id = id;
    EXPECT_TRUE(refused(0, plan, 1)) << "no rank has given request id " << id;
  }
  job.submit_all(allreduce("x"));
  EXPECT_EQ(job.take_all().size(), 1U) << "no part of a rejected message may be kept";
}

TEST(Negotiator, UrgencyIsForwardedUpTheTree) {
  ControlJob job({0, 0});
  job.rank(1).request_flush();
  job.submit(1, allreduce("x"));
  EXPECT_TRUE(job.rank(1).urgent());
  job.settle();
  EXPECT_FALSE(job.rank(1).urgent());
  EXPECT_TRUE(job.rank(0).urgent());
}

}  // namespace
}  // namespace perseus
