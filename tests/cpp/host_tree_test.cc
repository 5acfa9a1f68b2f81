// Tests the watch between many hosts. Each host has one rank, which is a thread; the connections are TCP over loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <latch>
#include <set>
#include <thread>

#include "bootstrap/watch/host_watch.h"
#include "common.h"
#include "thread_bootstrap.h"

namespace perseus::testing {
namespace {

struct Rank {
  Liveness liveness;
  HostWatch watch;
};
using Job = std::deque<Rank>;

// With so long a timeout, the hosts hardly probe each other.
HeartbeatOptions usual_options(int /*rank*/) {
  return {.timeout = std::chrono::hours(24), .interfaces = "lo", .patience = std::chrono::minutes(1)};
}

// Starts the watch of a job with one rank on each host.
void start(Job& job, const std::function<HeartbeatOptions(int rank)>& options) {
  const auto hosts = static_cast<int>(job.size());
  make_room_for_descriptors(16 * job.size());
  const auto all = scale::everybody(hosts);
  std::vector<std::string> names;
  for (const int host : all) names.push_back("h" + std::to_string(host));
  scale::Exchange exchange(hosts, all.size());
  scale::in_threads(all, [&](int rank) {
    scale::ThreadBootstrap bootstrap(rank, exchange);
    auto& mine = job[static_cast<std::size_t>(rank)];
    mine.liveness.name_hosts(names);
    mine.watch =
        watch_hosts(bootstrap, Topology(rank, all, names), /*has_local_watch=*/true, mine.liveness, options(rank));
  });
}

constexpr int kChildOf2 = static_cast<int>(kWatchFanOut) * 2 + 1;

bool contains(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

class HostTree : public ::testing::TestWithParam<int> {
 protected:
  static int hosts() { return GetParam(); }

  void SetUp() override { start(job_, usual_options); }

  Rank& at(int rank) { return job_[static_cast<std::size_t>(rank)]; }

  void end(const std::vector<int>& ranks) {
    scale::in_threads(ranks, [&](int rank) {
      at(rank).watch.probes.reset();
      at(rank).watch.connections.reset();
    });
    ended_.insert(ranks.begin(), ranks.end());
  }

  void leave(int rank) {
    at(rank).watch.connections->announce_shutdown();
    end({rank});
    for (int other = 0; other < hosts(); ++other) {
      while (!ended_.contains(other) && !at(other).watch.connections->any_left()) std::this_thread::yield();
    }
  }

  // Ends these ranks at the same time, without a shutdown message. Waits until all others know of one of them.
  void expect_all_learn_of(const std::vector<int>& lost) {
    std::vector<int> others;
    for (int rank = 0; rank < hosts(); ++rank) {
      if (std::ranges::find(lost, rank) == lost.end() && !ended_.contains(rank)) others.push_back(rank);
    }
    std::latch all_know(static_cast<std::ptrdiff_t>(others.size()));
    for (const int rank : others) at(rank).liveness.on_lost([&] { all_know.count_down(); });
    end(lost);
    all_know.wait();
    for (const int rank : others) {
      at(rank).liveness.remove_wakes();
      const auto text = at(rank).liveness.status().text();
      const bool names_one = std::ranges::any_of(lost, [&](int each) {
        return text == "rank " + std::to_string(each) + " on h" + std::to_string(each) + ' ' + std::string(kEnded);
      });
      EXPECT_TRUE(names_one) << "rank " << rank << ": " << text;
    }
  }

 private:
  Job job_{static_cast<std::size_t>(hosts())};
  std::set<int> ended_;
};

TEST_P(HostTree, ConnectsEachHostWithFewOthers) {
  for (int rank = 0; rank < hosts(); ++rank) {
    ASSERT_NE(at(rank).watch.connections, nullptr) << rank;
    const auto neighbours = at(rank).watch.connections->neighbours();
    EXPECT_LE(neighbours.size(), kWatchFanOut + (rank > 0 ? 3 : 1));
    if (rank > 0) {
      EXPECT_TRUE(contains(neighbours, static_cast<int>(parent_place(static_cast<std::size_t>(rank)))));
    }
    EXPECT_TRUE(contains(neighbours, (rank + 1) % hosts()));
  }
}

TEST_P(HostTree, AllLearnOfALostLeaf) { expect_all_learn_of({hosts() - 1}); }
TEST_P(HostTree, AllLearnOfALostInnerNode) { expect_all_learn_of({2}); }
TEST_P(HostTree, AllLearnOfALostRoot) { expect_all_learn_of({0}); }
TEST_P(HostTree, AllLearnOfAHostThatIsLostWithItsParent) { expect_all_learn_of({2, kChildOf2}); }
TEST_P(HostTree, AllLearnOfAHostThatIsLostWithTheRoot) { expect_all_learn_of({0, 1}); }
TEST_P(HostTree, AllLearnOfALeafThatIsLostWithAnInnerNodeElsewhere) { expect_all_learn_of({1, hosts() - 1}); }
TEST_P(HostTree, AllLeavesLearnOfTheLossOfAllInnerNodes) {
  std::vector<int> inner;
  for (int rank = 0; static_cast<int>(kWatchFanOut) * rank + 1 < hosts(); ++rank) inner.push_back(rank);
  expect_all_learn_of(inner);
}

TEST_P(HostTree, AllLearnThatARankHasLeft) {
  leave(hosts() - 1);
  for (int rank = 0; rank < hosts(); ++rank) EXPECT_FALSE(at(rank).liveness.any_lost());
}

// The ring goes round a rank that has left.
TEST_P(HostTree, AllLearnOfALossBehindAnInnerNodeThatHasLeft) {
  leave(2);
  expect_all_learn_of({kChildOf2});
}
TEST_P(HostTree, AllLearnOfALossAfterTheRootHasLeft) {
  leave(0);
  expect_all_learn_of({1});
}

// Rank 0 admits nobody, as if no host reached it in time.
TEST(HostTreeStart, AHostThatDoesNotReachItsParentHasItsChildren) {
  Job job(7);
  start(job, [](int rank) {
    auto options = usual_options(rank);
    options.patience = std::chrono::milliseconds(rank == 0 ? 0 : 2000);
    return options;
  });
  auto neighbours = job[1].watch.connections->neighbours();
  std::ranges::sort(neighbours);
  EXPECT_EQ(neighbours, (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(job[6].watch.connections->neighbours(), (std::vector<int>{2, 5}));
  EXPECT_EQ(job[1].watch.probes, nullptr) << "not all hosts would learn that a rank has left";
}

TEST(HostTreeStart, InterfacesThatOnlyTheFirstHostHasAreNoneOnOthers) {
  Job job(7);
  ::testing::internal::CaptureStderr();
  start(job, [](int rank) {
    auto options = usual_options(rank);
    if (rank > 0) options.interfaces = "of-rank-0";
    return options;
  });
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(job[6].watch.connections->neighbours(), (std::vector<int>{2, 5, 0}));
  EXPECT_NE(log.find("h5 has none of PERSEUS_NETWORK_INTERFACES=of-rank-0: rank 5 listens"), std::string::npos) << log;
  EXPECT_EQ(log.find("rank 0 listens"), std::string::npos) << log;
}

INSTANTIATE_TEST_SUITE_P(, HostTree, ::testing::Values(64, 256, 1024));

}  // namespace
}  // namespace perseus::testing
