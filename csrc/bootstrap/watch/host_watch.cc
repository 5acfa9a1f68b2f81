#include "bootstrap/watch/host_watch.h"

#include <string>
#include <utility>

namespace perseus {

std::vector<int> watch_parents(const Topology& topology, bool has_local_watch) {
  std::vector<int> parents(static_cast<std::size_t>(topology.size()), 0);
  for (int rank = 0; rank < topology.size(); ++rank) {
    const int first = topology.ranks_on(topology.host_of(rank)).front();
    if (has_local_watch && rank != first) parents[static_cast<std::size_t>(rank)] = first;
  }
  parents[0] = -1;
  return parents;
}

std::unique_ptr<Watch> watch_hosts(Bootstrap& bootstrap, const Topology& topology, bool has_local_watch,
                                   Liveness& liveness, const HeartbeatOptions& options) {
  std::vector<int> members{0}, leaders;
  for (int rank = 1; rank < topology.size(); ++rank) {
    const bool is_first = topology.ranks_on(topology.host_of(rank)).front() == rank;
    if (!has_local_watch || is_first) members.push_back(rank);
    if (is_first) leaders.push_back(rank);
  }
  auto met = connect_hosts(bootstrap, members, leaders, topology.host_names(), options);
  if (met.peers.empty()) return nullptr;
  std::vector<Watch::Peer> peers;
  peers.reserve(met.peers.size() + met.between_leaders.size());
  for (auto& peer : met.peers) peers.push_back({peer.rank, std::move(peer.socket)});
  const auto here = "rank " + std::to_string(topology.rank()) + " on " +
                    topology.host_names()[static_cast<std::size_t>(topology.rank())];
  for (auto& peer : met.between_leaders) {
    peers.push_back({.rank = peer.rank,
                     .socket = std::move(peer.socket),
                     .cut = "does not answer " + here +
                            " any more: the network between these two hosts is cut (no answer within "
                            "PERSEUS_HEARTBEAT_TIMEOUT)"});
  }
  auto watch = std::make_unique<Watch>(std::move(peers), /*forwards=*/true, liveness, "perseus-hosts");
  watch->keep(std::move(met.listeners));
  return watch;
}

}  // namespace perseus
