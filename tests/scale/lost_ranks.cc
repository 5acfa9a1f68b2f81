// Situations in which a rank is lost or stopped.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <utility>

#include "bootstrap/watch/host_watch.h"
#include "common.h"
#include "stall/missing_rank_query.h"

namespace perseus::scale {

using std::chrono::milliseconds;

namespace {

// A listener on the loopback interface.
class Loopback {
 public:
  Loopback() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    name_.sin_family = AF_INET;
    name_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof name_;
    require(bind(listener_.get(), plain(), length) == 0 && listen(listener_.get(), 16) == 0 &&
            getsockname(listener_.get(), plain(), &length) == 0);
  }
  // Returns both ends of a new connection.
  std::pair<UniqueFd, UniqueFd> connect_both() {
    UniqueFd one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(connect(one.get(), plain(), sizeof name_) == 0);
    UniqueFd other(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    require(static_cast<bool>(other));
    return {std::move(one), std::move(other)};
  }

 private:
  sockaddr* plain() { return reinterpret_cast<sockaddr*>(&name_); }

  UniqueFd listener_;
  sockaddr_in name_{};
};

std::size_t received_by(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  require(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
  return info.tcpi_bytes_received;
}

// Returns the processor time of this process's threads of this name.
std::chrono::nanoseconds time_of_threads(const std::string& name) {
  std::chrono::nanoseconds time{0};
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::int64_t nanoseconds = 0;
    std::ifstream(task.path() / "comm") >> comm;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    if (comm == name) time += std::chrono::nanoseconds(nanoseconds);
  }
  return time;
}

struct WatchedRank {
  Liveness liveness;
  std::vector<Watch::Peer> local_peers, host_peers;
  std::unique_ptr<Watch> local, hosts;
};

}  // namespace

Situation one_dead_rank(int ranks) {
  struct Connection {
    int other, leader, other_end, own_end;
  };
  const auto* const name = "root";
  make_room_for_descriptors(static_cast<std::size_t>(4 * ranks));
  Costs costs(ranks, kRanksPerHost);
  std::latch all_know(ranks - 1);  // outlives the threads of the watches
  const auto hosts = static_cast<std::size_t>(ranks / kRanksPerHost);
  Loopback loopback;
  std::deque<WatchedRank> job(static_cast<std::size_t>(ranks));
  const auto at = [&](int rank) -> WatchedRank& { return job[static_cast<std::size_t>(rank)]; };
  std::vector<Connection> connections;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool is_leader = rank % kRanksPerHost == 0;
    std::vector<int> others;
    if (is_leader) {
      for (const auto place : places_to_connect(static_cast<std::size_t>(rank / kRanksPerHost), hosts)) {
        others.push_back(static_cast<int>(place) * kRanksPerHost);
      }
    } else {
      others.push_back(rank - rank % kRanksPerHost);
    }
    const auto peers = is_leader ? &WatchedRank::host_peers : &WatchedRank::local_peers;
    for (const int other : others) {
      auto [other_end, own_end] = loopback.connect_both();
      if (is_leader) connections.push_back({other, rank, other_end.get(), own_end.get()});
      (at(other).*peers).push_back({rank, std::move(other_end)});
      (at(rank).*peers).push_back({other, std::move(own_end)});
    }
  }
  const int dead = ranks - 1;
  for (int rank = 0; rank < dead; ++rank) {
    auto& each = at(rank);
    const bool is_leader = rank % kRanksPerHost == 0;
    const auto* thread = rank == 0 ? name : "rank";
    if (is_leader) {
      each.hosts = std::make_unique<Watch>(std::move(each.host_peers), /*forwards=*/true, each.liveness, thread);
    }
    each.local =
        std::make_unique<Watch>(std::move(each.local_peers), /*forwards=*/is_leader, each.liveness, thread, rank);
    each.liveness.on_lost([&all_know] { all_know.count_down(); });
  }
  const auto before = time_of_threads(name);
  at(dead).local_peers.clear();
  all_know.wait();
  for (const auto& [other, leader, other_end, own_end] : connections) {
    const auto sent = received_by(other_end), received = received_by(own_end);
    costs.add_messages(leader, other, static_cast<int>(sent / sizeof(WatchNote)), sent);
    costs.add_messages(other, leader, static_cast<int>(received / sizeof(WatchNote)), received);
  }
  auto found = situation("one dead rank", costs);
  found.root.time = time_of_threads(name) - before;
  for (auto& each : job) {
    if (each.local) each.local->announce_shutdown();
    if (each.hosts) each.hosts->announce_shutdown();
  }
  return found;
}

Situation one_stopped_rank(int ranks) {
  constexpr milliseconds kTimeout{2000}, kPeriod{50};
  Costs costs(ranks, kRanksPerHost);
  const auto parents = watch_parents(Topology(0, costs.hosts()), /*has_local_watch=*/true);
  std::deque<MissingRankQuery> job;
  for (int rank = 0; rank < ranks; ++rank) {
    job.emplace_back(rank, parents, [](const ProgressPoint&) { return Progress::reached; }, kTimeout, 16);
  }
  RankSet everybody;
  everybody.add_run({0, ranks});
  const int stopped = ranks - 1;
  MissingRankQuery::Clock::time_point now(std::chrono::hours(1));
  for (int rank = 0; rank < stopped; ++rank) {
    costs.timed(rank, [&] { job[static_cast<std::size_t>(rank)].ask({.number = 1}, everybody, now); });
  }
  int verdicts = 0;
  for (const auto end = now + 2 * kTimeout; now < end; now += kPeriod) {
    for (int rank = 0; rank < stopped; ++rank) {
      costs.timed(rank, [&] { job[static_cast<std::size_t>(rank)].look(now); });
    }
    for (bool any = true; any;) {
      any = false;
      for (int rank = 0; rank < stopped; ++rank) {
        auto& each = job[static_cast<std::size_t>(rank)];
        for (const auto& verdict : each.take_verdicts()) {
          require(verdict.silent == RankSet{stopped});
          ++verdicts;
        }
        for (const auto& message : each.take_messages()) {
          costs.add_messages(rank, message.to, 1, message.bytes.size());
          if (message.to == stopped) continue;
          costs.timed(message.to, [&] { job[static_cast<std::size_t>(message.to)].receive(rank, message.bytes, now); });
          any = true;
        }
      }
    }
  }
  require(verdicts == stopped);
  return situation("one stopped rank", costs);
}

}  // namespace perseus::scale
