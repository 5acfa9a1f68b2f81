#include "situations.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "base/config.h"
#include "bootstrap/host_watch.h"
#include "engine/common_settings.h"
#include "negotiating_job.h"
#include "simulated_mpi.h"
#include "transport/all_or_none.h"
#include "transport/hierarchy/channel.h"
#include "transport/messages/channel.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/network.h"
#include "transport/mpi/process.h"

namespace perseus::scale {
namespace {

using std::chrono::milliseconds;

void require(bool is_right) {
  if (!is_right) std::abort();
}

Situation situation(const char* name, const Costs& costs) {
  Situation found{name, costs.root(), costs.root().connections(), costs.most_messages(), costs.most_connections()};
  found.root.peers.clear();
  return found;
}

std::vector<int> everybody(int ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Runs the function for each rank in a thread of its own.
template <typename Function>
void in_threads(const std::vector<int>& ranks, const Function& function) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const int rank : ranks) threads.emplace_back([&function, rank] { function(rank); });
  for (auto& thread : threads) thread.join();
}

}  // namespace

std::vector<Situation> steps(int ranks, int tensors) {
  constexpr int kSteps = 5;
  Costs costs(ranks, kRanksPerHost);
  NegotiatingJob job(make_trees(costs), costs);
  const auto requests = layers(tensors);
  const auto step = [&] {
    costs.reset();
    require(job.step(requests, ranks) == requests.size());
  };
  step();
  const auto first = situation("the first step", costs);
  auto least = std::chrono::nanoseconds::max();
  for (int i = 0; i < kSteps; ++i) {
    step();
    least = std::min(least, costs.root().time);
  }
  auto steady = situation("a steady step", costs);
  steady.root.time = least;
  return {steady, first};
}

std::vector<Situation> one_straggler(int ranks, int tensors) {
  constexpr milliseconds kWarning{60000};
  Costs costs(ranks, kRanksPerHost);
  NegotiatingJob job(make_trees(costs), costs, {.stall_warning = kWarning});
  const auto requests = layers(tensors);
  require(job.step(requests, ranks) == requests.size());
  require(job.step(requests, ranks - 1) == 0);
  std::chrono::nanoseconds longest{0};
  costs.reset();
  for (int i = 0; i < 10; ++i) {
    job.now += milliseconds(100);
    longest = std::max(longest, job.check_stalls());
    require(job.settle() == 0);
  }
  auto check = situation("one straggler: a check for stalls", costs);
  check.root.time = longest;
  job.now += kWarning;
  costs.reset();
  std::size_t warnings = 0;
  for (int i = 0; i < 2; ++i) {
    job.check_stalls();
    warnings += job.settle();
  }
  require(warnings == requests.size());
  return {check, situation("one straggler: the warning", costs)};
}

Situation process_sets(int ranks, int sets) {
  Costs costs(ranks, kRanksPerHost);
  const auto trees = make_trees(costs);
  const auto request = layers(1);
  for (int set = 0; set < sets; ++set) {
    NegotiatingJob job(trees, costs);
    require(job.step(request, ranks) == 1);
  }
  return situation("200 process sets", costs);
}

// --- the watch
// ---------------------------------------------------------------------------------------------------------

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
    int leader, root_end, leader_end;
  };
  const auto* const name = "root";
  make_room_for_descriptors(static_cast<std::size_t>(4 * ranks));
  Costs costs(ranks, kRanksPerHost);
  Loopback loopback;
  std::deque<WatchedRank> job(static_cast<std::size_t>(ranks));
  const auto at = [&](int rank) -> WatchedRank& { return job[static_cast<std::size_t>(rank)]; };
  std::vector<Connection> connections;
  for (int rank = 1; rank < ranks; ++rank) {
    auto [one, other] = loopback.connect_both();
    const int leader = rank - rank % kRanksPerHost;
    if (rank != leader) {
      at(leader).local_peers.push_back({rank, std::move(one)});
      at(rank).local_peers.push_back({leader, std::move(other)});
      continue;
    }
    connections.push_back({leader, one.get(), other.get()});
    at(0).host_peers.push_back({leader, std::move(one)});
    at(leader).host_peers.push_back({0, std::move(other)});
  }
  const int dead = ranks - 1;
  std::latch all_know(ranks - 1);
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
  for (const auto& [leader, root_end, leader_end] : connections) {
    const auto to_root = received_by(root_end), to_leader = received_by(leader_end);
    costs.add_messages(leader, 0, static_cast<int>(to_root / sizeof(WatchNote)), to_root);
    costs.add_messages(0, leader, static_cast<int>(to_leader / sizeof(WatchNote)), to_leader);
  }
  auto found = situation("one dead rank", costs);
  found.root.time = time_of_threads(name) - before;
  for (auto& each : job) {
    if (each.local) each.local->announce_shutdown();
    if (each.hosts) each.hosts->announce_shutdown();
  }
  return found;
}

// --- the start
// ---------------------------------------------------------------------------------------------------------

Situation start(int ranks) {
  Costs costs(ranks, 1);
  SimulatedMpi mpi(costs);
  const auto all = everybody(ranks);
  std::latch connected(ranks), counted(1);
  Situation found{};
  std::thread waiter([&] {
    connected.wait();
    found = situation("the start", costs);
    counted.count_down();
  });
  in_threads(all, [&](int rank) {
    Liveness liveness;
    std::unique_ptr<mpi::MpiBootstrap> bootstrap;
    std::unique_ptr<Fabric> fabric;
    Link link;
    costs.timed(rank, [&] {
      bootstrap = std::make_unique<mpi::MpiBootstrap>(mpi.api(rank), mpi.api(rank).world(), milliseconds(0));
      Config config;
      static_cast<void>(take_common_settings(config, *bootstrap));
      static_cast<void>(Topology::discover(*bootstrap));
      fabric = make_fabric(*bootstrap, Topology(rank, all), liveness);
      const auto exchange = [&](std::string_view mine) { return bootstrap->allgather(mine); };
      link = all_or_none(rank, exchange, [&] { return fabric->connect(all, exchange); });
    });
    connected.count_down();
    counted.wait();
  });
  waiter.join();
  while (!mpi::closing_channels().sweep()) {
  }
  return found;
}

namespace {

// Exchanges the bytes of ranks that are threads. A rank that takes no part has none.
class Exchange {
 public:
  Exchange(int size, std::size_t taking_part)
      : size_(size), missing_(taking_part), texts_(static_cast<std::size_t>(size)) {}
  std::vector<std::string> allgather(int rank, std::string_view mine) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<std::size_t>(rank)] = mine;
    if (--missing_ == 0) all_.notify_all();
    all_.wait(lock, [&] { return missing_ == 0; });
    return texts_;
  }
  int size() const { return size_; }

 private:
  int size_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable all_;
  std::size_t missing_;
  std::vector<std::string> texts_;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(int rank, Exchange& exchange) : rank_(rank), exchange_(exchange) {}
  std::string_view name() const override { return "simulated"; }
  int rank() const override { return rank_; }
  int size() const override { return exchange_.size(); }
  std::vector<std::string> allgather(std::string_view mine) override { return exchange_.allgather(rank_, mine); }

 private:
  int rank_;
  Exchange& exchange_;
};

}  // namespace

Situation start_of_watch(int ranks) {
  make_room_for_descriptors(static_cast<std::size_t>(4 * ranks));
  Costs costs(ranks, kRanksPerHost);
  std::vector<int> leaders;
  for (int rank = 0; rank < ranks; rank += kRanksPerHost) leaders.push_back(rank);
  const std::vector<int> others(leaders.begin() + 1, leaders.end());
  const std::vector<std::string> names(static_cast<std::size_t>(ranks), "host");
  Exchange exchange(ranks, leaders.size());
  std::latch connected(static_cast<std::ptrdiff_t>(leaders.size()));
  in_threads(leaders, [&](int rank) {
    HostConnections connections;
    costs.timed(rank, [&] {
      ThreadBootstrap bootstrap(rank, exchange);
      connections =
          connect_hosts(bootstrap, leaders, others, names, {.interfaces = "lo", .patience = std::chrono::minutes(1)});
    });
    for (const auto& peer : connections.peers) costs.add_connection(rank, peer.rank);
    for (const auto& peer : connections.between_leaders) costs.add_connection(rank, peer.rank);
    connected.arrive_and_wait();
  });
  return situation("the start of the watch between hosts", costs);
}

// --- the shutdown
// ------------------------------------------------------------------------------------------------------

namespace {

// The control messages between the ranks of one host.
using HostQueues = std::vector<std::deque<ControlMessage>>;

class HostLink final : public ControlChannel {
 public:
  HostLink(HostQueues& queues, int index) : queues_(queues), index_(index) {}
  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(queues_.size()); }
  void send(int to, std::string bytes) override {
    queues_[static_cast<std::size_t>(to)].push_back({index_, std::move(bytes)});
  }
  bool receive(ControlMessage& message) override {
    auto& queue = queues_[static_cast<std::size_t>(index_)];
    if (queue.empty()) return false;
    message = std::move(queue.front());
    queue.pop_front();
    return true;
  }
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return false; }

 private:
  HostQueues& queues_;
  int index_;
  Doorbell doorbell_;
};

struct LeavingRank {
  LeavingRank(const Tree& tree) : negotiator(tree, {}) {}
  Negotiator negotiator;
  messages::ClosingChannels closing;
  std::unique_ptr<ControlChannel> channel;
};

}  // namespace

Situation shutdown(int ranks) {
  Costs costs(ranks, kRanksPerHost);
  SimulatedMpi mpi(costs);
  const Topology topology(0, costs.hosts());
  const auto all = everybody(ranks);
  const hierarchy::Layout layout(topology, all);
  const auto leaders = mpi.add_group(layout.rail_members(0));
  std::vector<HostQueues> hosts(static_cast<std::size_t>(topology.host_count()), HostQueues(kRanksPerHost));
  std::deque<LeavingRank> job;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& each = job.emplace_back(make_tree(rank, costs.hosts(), all));
    const auto channel = [&](mpi::Comm comm) {
      return std::make_unique<messages::MessageChannel>(mpi::make_network(mpi.api(rank), {comm}),
                                                        messages::WaitOptions{}, each.closing);
    };
    each.channel = std::make_unique<hierarchy::ClusterChannel>(
        layout, rank,
        std::make_unique<HostLink>(hosts[static_cast<std::size_t>(costs.host_of(rank))], rank % kRanksPerHost),
        rank % kRanksPerHost == 0 ? channel(leaders) : nullptr, channel(mpi.api(rank).world()));
    costs.timed(rank, [&] { each.negotiator.leave(); });
  }
  const Negotiator::Clock::time_point now{};
  for (bool busy = true; busy;) {
    busy = false;
    for (int rank = 0; rank < ranks; ++rank) {
      costs.timed(rank, [&] {
        auto& each = job[static_cast<std::size_t>(rank)];
        for (ControlMessage message; each.channel->receive(message); busy = true) {
          each.negotiator.receive(message.from, message.bytes, now);
        }
        if (!each.negotiator.has_news()) return;
        for (auto& message : each.negotiator.flush(now)) each.channel->send(message.to, std::move(message.bytes));
        busy = true;
      });
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    costs.timed(rank, [&] { job[static_cast<std::size_t>(rank)].channel.reset(); });
  }
  for (bool all_closed = false; !all_closed;) {
    all_closed = true;
    for (int rank = 0; rank < ranks; ++rank) {
      costs.timed(rank, [&] { all_closed = job[static_cast<std::size_t>(rank)].closing.sweep() && all_closed; });
    }
  }
  return situation("the shutdown", costs);
}

}  // namespace perseus::scale
