// Situations of the start.
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include "base/config.h"
#include "bootstrap/host_rendezvous.h"
#include "common.h"
#include "engine/session/common_settings.h"
#include "simulated_mpi.h"
#include "thread_bootstrap.h"
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

Situation start_of_watch(int ranks) {
  make_room_for_descriptors(static_cast<std::size_t>(4 * ranks));
  Costs costs(ranks, kRanksPerHost);
  std::vector<int> leaders;
  for (int rank = 0; rank < ranks; rank += kRanksPerHost) leaders.push_back(rank);
  const std::vector<std::string> names(static_cast<std::size_t>(ranks), "host");
  Exchange exchange(ranks, leaders.size());
  std::latch connected(static_cast<std::ptrdiff_t>(leaders.size()));
  in_threads(leaders, [&](int rank) {
    HostConnections connections;
    costs.timed(rank, [&] {
      ThreadBootstrap bootstrap(rank, exchange);
      connections = connect_hosts(bootstrap, leaders, names, {.interfaces = "lo", .patience = std::chrono::minutes(1)});
    });
    for (const auto& peer : connections.peers) costs.add_connection(rank, peer.rank);
    connected.arrive_and_wait();
  });
  return situation("the start of the watch between hosts", costs);
}

}  // namespace perseus::scale
