// The watch between hosts: notices that a process there has ended, or that its host no longer answers.
#pragma once

#include <memory>
#include <vector>

#include "bootstrap/host_meeting.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch.h"

namespace perseus {

// Every rank's neighbour on the way to rank 0, -1 for rank 0 itself. `has_local_watch`: the ranks of a host have a
// watch of their own around the first of them, which stands for all of them between hosts; otherwise each stands for
// itself.
std::vector<int> watch_parents(const Topology& topology, bool has_local_watch);

// Collective. Null on ranks that take no part. It carries nothing but what watches say.
std::unique_ptr<Watch> watch_hosts(Bootstrap& bootstrap, const Topology& topology, bool has_local_watch,
                                   Liveness& liveness, const HeartbeatOptions& options);

}  // namespace perseus
