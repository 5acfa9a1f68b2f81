// Tests the probes between hosts that no connection of the watch joins. The hosts are ports of the loopback interface.
#include "bootstrap/watch/host_probes.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "transport_world.h"

namespace perseus::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr HostProbes::Pace kPace{.round = milliseconds(10), .limit = 4};
const std::vector<std::string> kProbedHosts = {"a", "b", "c"};
constexpr auto kCut =
    "rank 2 on c does not answer rank 0 on a any more: the network between these two hosts is cut (no answer within "
    "PERSEUS_HEARTBEAT_TIMEOUT)";

// A host whose kernel accepts one connection. Until that is taken away, it answers nothing more.
class Host {
 public:
  Host() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    name_.sin_family = AF_INET;
    name_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof name_;
    EXPECT_EQ(bind(listener_.get(), plain(), length), 0);
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    EXPECT_EQ(getsockname(listener_.get(), plain(), &length), 0);
  }
  Endpoint endpoint() const { return {"127.0.0.1", ntohs(name_.sin_port)}; }
  // Waits for a probe, and lets the host answer another one. Returns false if none comes.
  bool take_probe() const {
    return wait_readable(listener_.get(), std::chrono::steady_clock::now() + seconds(10)) &&
           UniqueFd(accept(listener_.get(), nullptr, nullptr));
  }
  // Returns a connection without which the host would answer.
  UniqueFd silence() {
    UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(connection.get(), plain(), sizeof name_), 0);
    return connection;
  }

 private:
  sockaddr* plain() { return reinterpret_cast<sockaddr*>(&name_); }

  UniqueFd listener_;
  sockaddr_in name_{};
};

// Rank 0 on host a, whose watch has a connection.
struct Prober {
  UniqueFd peer;
  Liveness liveness;
  std::unique_ptr<Watch> watch;

  Prober() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    peer.reset(ends[1]);
    liveness.name_hosts(kProbedHosts);
    std::vector<Watch::Peer> peers;
    peers.push_back({1, UniqueFd(ends[0])});
    watch = std::make_unique<Watch>(std::move(peers), /*forwards=*/true, liveness, "test");
  }
  // Returns probes of a process whose work waits all the time, unless `waiting` says otherwise.
  std::unique_ptr<HostProbes> probes(std::vector<HostProbes::Target> targets, UniqueFd reserved = {},
                                     HostProbes::Waiting waiting = stalled, HostProbes::Pace pace = kPace) {
    auto made =
        std::make_unique<HostProbes>(0, std::move(targets), std::move(reserved), pace, kProbedHosts, *watch, liveness);
    made->start(std::move(waiting));
    return made;
  }
  static std::set<std::pair<std::uint64_t, std::int64_t>> stalled() { return {{7, 1}}; }
};

TEST(HostProbes, AHostThatDoesNotAnswerAnyMoreIsCutOff) {
  Host host;
  Prober prober;
  const auto probes = prober.probes({{2, host.endpoint()}});
  EXPECT_TRUE(host.take_probe());
  EXPECT_EQ(wait_for_loss(prober.liveness), kCut);
  EXPECT_FALSE(prober.liveness.is_cut_off()) << "other hosts reach both";
}

// Rank 1's host refuses the connections, as it does while its processes are stopped.
TEST(HostProbes, ARefusalIsAnAnswer) {
  Host host;
  Prober prober;
  int port = 0;
  auto reserved = reserve_port(port);
  ASSERT_TRUE(reserved);
  const auto probes = prober.probes({{1, {"127.0.0.1", port}}, {2, host.endpoint()}}, std::move(reserved));
  for (int i = 0; i < 3 * kPace.limit && !prober.liveness.any_lost(); ++i) host.take_probe();
  EXPECT_EQ(wait_for_loss(prober.liveness), kCut);
}

TEST(HostProbes, AHostThatHasNeverAnsweredIsNotLost) {
  Host behind_firewall, host;
  const auto silence = behind_firewall.silence();
  Prober prober;
  const auto probes = prober.probes({{1, behind_firewall.endpoint()}, {2, host.endpoint()}});
  for (int i = 0; i < 3 * kPace.limit && !prober.liveness.any_lost(); ++i) host.take_probe();
  EXPECT_EQ(wait_for_loss(prober.liveness), kCut);
}

// The host is silent from its first answer on.
TEST(HostProbes, AHostIsNotProbedWhileWorkGoesOn) {
  Host host;
  Prober prober;
  std::atomic<int> asked = 0;
  std::atomic<bool> is_stalled = false;
  const auto probes =
      prober.probes({{2, host.endpoint()}}, {}, [&]() -> std::set<std::pair<std::uint64_t, std::int64_t>> {
        ++asked;
        asked.notify_all();
        return {{7, is_stalled ? -1 : asked.load()}, {8, asked}};
      });
  EXPECT_TRUE(host.take_probe());
  const auto silence = host.silence();
  for (int seen = 0; seen < 6 * kPace.limit; seen = asked) asked.wait(seen);
  EXPECT_FALSE(prober.liveness.any_lost());
  is_stalled = true;
  EXPECT_EQ(wait_for_loss(prober.liveness), kCut);
}

// A host may be switched off once its ranks have left.
TEST(HostProbes, NoHostIsLostOnceARankHasLeft) {
  Host host;
  Prober prober;
  const auto probes =
      prober.probes({{2, host.endpoint()}}, {}, Prober::stalled, {.round = milliseconds(10), .limit = 100});
  EXPECT_TRUE(host.take_probe());
  const auto goodbye = WatchNote::goodbye();
  const auto soon = std::chrono::steady_clock::now() + seconds(20);
  ASSERT_EQ(send_all(prober.peer.get(), &goodbye, sizeof goodbye, soon), IoResult::ok);
  WatchNote forwarded;
  EXPECT_EQ(receive_all(prober.peer.get(), &forwarded, sizeof forwarded, soon), IoResult::ok);
  EXPECT_EQ(forwarded.word, WatchNote::Word::departure);
  std::promise<void> lost;
  prober.liveness.on_lost([&] { lost.set_value(); });
  EXPECT_EQ(lost.get_future().wait_for(seconds(2)), std::future_status::timeout);
  prober.liveness.remove_wakes();
}

TEST(HostProbes, PaceKeepsTheTimeoutAndFewProbesPerSecond) {
  const auto of = [](int timeout, std::size_t targets) { return HostProbes::Pace::of(seconds(timeout), targets); };
  EXPECT_EQ(of(30, 1).round, seconds(3));
  EXPECT_EQ(of(30, 1).limit, 12);
  EXPECT_EQ(of(3, 1).round, seconds(1));
  EXPECT_EQ(of(3, 1).limit, 5);
  EXPECT_EQ(of(30, 500).round, seconds(10));
  EXPECT_EQ(of(30, 500).limit, 5);
  EXPECT_EQ(of(30, 5000).limit, 3);
}

}  // namespace
}  // namespace perseus::testing
