#include "bootstrap/host_watch.h"

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
  std::vector<int> members{0};
  for (int rank = 1; rank < topology.size(); ++rank) {
    const int host = topology.host_of(rank);
    if (!has_local_watch || topology.ranks_on(host).front() == rank) members.push_back(rank);
  }
  auto met = connect_hosts(bootstrap, members, topology.host_names(), options);
  if (met.empty()) return nullptr;
  std::vector<Watch::Peer> peers;
  peers.reserve(met.size());
  for (auto& peer : met) peers.push_back({peer.rank, std::move(peer.socket)});
  return std::make_unique<Watch>(std::move(peers), /*forwards=*/true, liveness, "perseus-hosts");
}

}  // namespace perseus
