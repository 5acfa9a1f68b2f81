// Tests the watch between hosts. The hosts here are processes of one host; tests/hosts uses network namespaces.
#include "bootstrap/watch/host_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "bootstrap/local/local.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using std::chrono::seconds;

constexpr int kSize = 4;
constexpr auto kKilled = "ended without shutting down (it was killed, crashed, or left because of an error)";

// Runs `play` for four ranks on hosts a, a, b and c, each in its own process, without a watch inside the hosts. Returns
// true if those that ended by themselves succeeded.
bool on_hosts(const HeartbeatOptions& options, const std::function<void(int, Watch*, Liveness&)>& play,
              int victim = -1) {
  const auto address = random_rendezvous_address();
  std::vector<int> children;
  for (int r = 0; r < kSize; ++r) {
    children.push_back(fork_rank([&, r] {
      LocalJob job;
      job.rank = r;
      job.size = kSize;
      job.address = address;
      LocalBootstrap bootstrap(job);
      const Topology topology(r, {0, 0, 1, 2}, {"a", "a", "b", "c"});
      Liveness liveness;
      liveness.name_hosts(topology.host_names());
      const auto watch = watch_hosts(bootstrap, topology, /*has_local_watch=*/false, liveness, options);
      bootstrap.allgather("all are connected");
      play(r, watch.connections.get(), liveness);
    }));
  }
  bool well = true;
  for (int r = 0; r < kSize; ++r) {
    const auto child = children[static_cast<std::size_t>(r)];
    if (r == victim) {
      waitpid(child, nullptr, 0);
    } else {
      well = ended_well(child) && well;
    }
  }
  return well;
}

void check_loss(int victim, const std::string& name) {
  const auto play = [&](int rank, Watch*, Liveness& liveness) {
    if (rank == victim) raise(SIGKILL);
    EXPECT_EQ(wait_for_loss(liveness), name + " " + kKilled);
    EXPECT_FALSE(liveness.is_cut_off());
  };
  EXPECT_TRUE(on_hosts({}, play, victim));
}

TEST(HostWatch, AllRanksLearnOfAKilledMember) { check_loss(3, "rank 3 on c"); }
TEST(HostWatch, AllRanksLearnOfAKilledRankZero) { check_loss(0, "rank 0 on a"); }

TEST(HostWatch, OtherHostsLearnOfALocalLoss) {
  const auto play = [](int rank, Watch*, Liveness& liveness) {
    if (rank == 2) liveness.report_lost({1, "is reported", true});
    EXPECT_EQ(wait_for_loss(liveness), "rank 1 on a is reported");
    EXPECT_TRUE(liveness.is_cut_off());
  };
  EXPECT_TRUE(on_hosts({}, play));
}

TEST(HostWatch, AShutdownMessageIsNotALoss) {
  const auto play = [](int rank, Watch* watch, Liveness& liveness) {
    ASSERT_NE(watch, nullptr);
    watch->announce_shutdown();
    if (rank != 0) return;
    // All others have left in order.
    std::promise<void> lost;
    liveness.on_lost([&] { lost.set_value(); });
    EXPECT_EQ(lost.get_future().wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  };
  EXPECT_TRUE(on_hosts({}, play));
}

TEST(HostWatch, IsOffWithoutATimeout) {
  const auto play = [](int, Watch* watch, Liveness&) { EXPECT_EQ(watch, nullptr); };
  EXPECT_TRUE(on_hosts({.timeout = seconds(0)}, play));
}

// The interfaces concern rank 0. Others take any, and are connected by the ring.
TEST(HostWatch, AMissingInterfaceDoesNotEndTheJob) {
  const auto play = [](int rank, Watch* watch, Liveness&) { EXPECT_EQ(watch == nullptr, rank == 0); };
  const HeartbeatOptions options{.interfaces = "no-such-interface", .patience = std::chrono::milliseconds(100)};
  EXPECT_TRUE(on_hosts(options, play));
}

}  // namespace
}  // namespace perseus::testing
