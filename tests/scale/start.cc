// Situations of the start.
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/config.h"
#include "bootstrap/host_rendezvous.h"
#include "common.h"
#include "engine/session/common_settings.h"
#include "simulated_mpi.h"
#include "transport/all_or_none.h"
#include "transport/messages/control_messages.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/process.h"

namespace perseus::scale {

using std::chrono::milliseconds;

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
  while (mpi::closing_channels().sweep() > 0) {
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

}  // namespace perseus::scale
