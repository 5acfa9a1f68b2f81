// Makes the watch between hosts, which detects that a process there has ended or that its host does not answer.
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/host_rendezvous.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch/watch.h"

namespace perseus {

// Returns each rank's neighbour on the way to rank 0, and −1 for rank 0. With `has_local_watch`, the ranks of a host
// have a watch around the first of them, and only that rank connects to rank 0. Otherwise every rank does.
std::vector<int> watch_parents(const Topology& topology, bool has_local_watch);

// Makes the watch. Collective. Returns null on ranks that take no part. Its connections carry only watch messages.
std::unique_ptr<Watch> watch_hosts(Bootstrap& bootstrap, const Topology& topology, bool has_local_watch,
                                   Liveness& liveness, const HeartbeatOptions& options);

}  // namespace perseus
