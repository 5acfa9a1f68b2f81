#include "bootstrap/watch/host_watch.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "bootstrap/endpoint.h"

namespace perseus {
namespace {

constexpr auto kIncomplete = "-";  // in place of an endpoint

// Returns the ranks of the tree between hosts, ascending.
std::vector<int> members_of(const Topology& topology, bool has_local_watch) {
  std::vector<int> members;
  for (int rank = 0; rank < topology.size(); ++rank) {
    if (!has_local_watch || topology.ranks_on(topology.host_of(rank)).front() == rank) members.push_back(rank);
  }
  return members;
}

// Returns the hosts that this one probes. `texts` have the endpoints of first ranks, by rank. Each host probes the half
// of the others that follows it, so that of two hosts one probes the other.
std::vector<HostProbes::Target> targets_of(const Topology& topology, const std::vector<HostPeer>& peers,
                                           const std::vector<std::string>& texts) {
  const int here = topology.host_of(topology.rank()), hosts = topology.host_count();
  std::set<int> connected;
  for (const auto& peer : peers) connected.insert(topology.host_of(peer.rank));
  std::vector<HostProbes::Target> targets;
  for (int distance = 1; 2 * distance <= hosts; ++distance) {
    const int other = (here + distance) % hosts;
    const bool probes_this_one = 2 * distance == hosts && other < here;
    if (connected.contains(other) || probes_this_one) continue;
    const int rank = topology.ranks_on(other).front();
    Endpoint endpoint;
    if (std::istringstream(texts[static_cast<std::size_t>(rank)]) >> endpoint.address >> endpoint.port) {
      targets.push_back({rank, std::move(endpoint)});
    }
  }
  return targets;
}

}  // namespace

std::vector<int> watch_parents(const Topology& topology, bool has_local_watch) {
  const auto members = members_of(topology, has_local_watch);
  std::vector<int> parents(static_cast<std::size_t>(topology.size()));
  for (int rank = 0; rank < topology.size(); ++rank) {
    parents[static_cast<std::size_t>(rank)] = topology.ranks_on(topology.host_of(rank)).front();
  }
  for (std::size_t place = 1; place < members.size(); ++place) {
    parents[static_cast<std::size_t>(members[place])] = members[parent_place(place)];
  }
  parents[0] = -1;
  return parents;
}

HostWatch watch_hosts(Bootstrap& bootstrap, const Topology& topology, bool has_local_watch, Liveness& liveness,
                      const HeartbeatOptions& options) {
  auto met = connect_hosts(bootstrap, members_of(topology, has_local_watch), topology.host_names(), options);
  const bool are_all_connected = topology.host_count() <= 2;  // by the tree
  if (met.timeout.count() == 0) return {};

  // The address at which this rank is connected with one host is the one at which other hosts reach it.
  const bool is_first = topology.local_rank() == 0 && !met.peers.empty() && !are_all_connected;
  int port = 0;
  auto reserved = is_first ? reserve_port(port) : UniqueFd();
  std::string mine;
  if (reserved) mine = own_address_of(met.peers.front().socket.get()) + ' ' + std::to_string(port);
  if (!met.is_complete) mine = kIncomplete;
  const auto texts = are_all_connected ? std::vector<std::string>() : bootstrap.allgather(mine);
  if (met.peers.empty()) return {};

  HostWatch watch;
  std::vector<Watch::Peer> peers;
  peers.reserve(met.peers.size());
  const int rank = topology.rank();
  const auto parents = watch_parents(topology, has_local_watch);
  for (auto& peer : met.peers) {
    const auto parent_of = [&](int each) { return parents[static_cast<std::size_t>(each)]; };
    const bool is_in_tree = parent_of(peer.rank) == rank || parent_of(rank) == peer.rank;
    std::string cut;
    if (!is_in_tree) {
      // As with the probes, the faster heartbeat of the tree names a host that is down, and the lower of two ranks that
      // are cut off from each other names the other one.
      const int intervals = rank < peer.rank ? 2 : 4;
      set_heartbeat(peer.socket.get(), met.timeout + intervals * heartbeat_interval(met.timeout));
      cut = HostProbes::text_of_cut(rank, topology.host_names());
    }
    peers.push_back({peer.rank, std::move(peer.socket), std::move(cut)});
  }
  watch.connections = std::make_unique<Watch>(std::move(peers), /*forwards=*/true, liveness, "perseus-hosts");
  // If connections are missing, not all hosts may learn that a rank has left, which ends the probes.
  if (is_first && std::ranges::find(texts, kIncomplete) == texts.end()) {
    auto targets = targets_of(topology, met.peers, texts);
    const auto pace = HostProbes::Pace::of(met.timeout, targets.size());
    watch.probes = std::make_unique<HostProbes>(topology.rank(), std::move(targets), std::move(reserved), pace,
                                                topology.host_names(), *watch.connections, liveness);
  }
  return watch;
}

}  // namespace perseus
