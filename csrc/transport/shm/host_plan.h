// What the ranks of a host agree on before they share memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "bootstrap/local_star.h"
#include "transport/fabric.h"
#include "transport/shm/seat.h"

namespace perseus::shm {

struct HostPlan {
  std::vector<int> ranks;  // world ranks by local rank, ascending
  int local_rank = 0;
  std::size_t chunk_bytes = 0;
  std::size_t headroom = 1;  // times chunk_bytes may become
  std::chrono::microseconds spin{30};
  bool crowded = false;  // more ranks than cores
};

// Collective over the star.
HostPlan agree_on_plan(LocalStar& star, std::vector<int> ranks, const FabricOptions& options);

// The staging memory of a group of so many members, the same on each of them.
Staging staging_for(const HostPlan& plan, int members);

}  // namespace perseus::shm
