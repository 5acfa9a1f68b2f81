// Makes the watch between hosts, which detects that a process there has ended or that its host does not answer.
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/host_rendezvous.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch/host_probes.h"
#include "bootstrap/watch/watch.h"

namespace perseus {

// This rank's part of the watch between hosts. Both are null on ranks that take no part. A loss goes along all
// connections to all ranks. If several ranks are lost, the neighbours of each notice it.
struct HostWatch {
  std::unique_ptr<Watch> connections = {};  // a tree and a ring of these ranks
  std::unique_ptr<HostProbes> probes = {};  // of hosts to which no connection exists; on the first rank of a host
};

// Returns each rank's neighbour on the way to rank 0, and −1 for rank 0. With `has_local_watch`, the ranks of a host
// have a watch around the first of them, and only these first ranks form the tree between hosts. Otherwise all ranks
// do. Missing-rank queries go along it.
std::vector<int> watch_parents(const Topology& topology, bool has_local_watch);

// Makes the watch. Collective. Its connections carry only watch messages.
HostWatch watch_hosts(Bootstrap& bootstrap, const Topology& topology, bool has_local_watch, Liveness& liveness,
                      const HeartbeatOptions& options);

}  // namespace perseus
