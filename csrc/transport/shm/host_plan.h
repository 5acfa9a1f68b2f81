// Agrees on the settings of shared memory between the ranks of a host.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "bootstrap/local/local_rendezvous.h"
#include "transport/fabric.h"
#include "transport/shm/member_header.h"

namespace perseus::shm {

// The settings on which the ranks of a host have agreed.
struct HostPlan {
  std::vector<int> ranks;  // world ranks by local rank, ascending
  int local_rank = 0;
  std::size_t chunk_bytes = 0;
  std::size_t headroom = 1;  // set_chunk_bytes() may raise chunk_bytes by this factor
  std::chrono::microseconds spin{30};
  bool crowded = false;  // more ranks than cores
};

// Agrees on the plan. Collective over the rendezvous.
HostPlan agree_on_plan(LocalRendezvous& rendezvous, std::vector<int> ranks, const FabricOptions& options);

// Returns the layout of the staging memory of a group of `members` members, the same on each of them.
Staging staging_for(const HostPlan& plan, int members);

}  // namespace perseus::shm
