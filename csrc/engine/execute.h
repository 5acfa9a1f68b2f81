// Moves the data of one batch: from this rank's memory through the transport to where the results belong.
#pragma once

#include <vector>

#include "base/error.h"
#include "control/request.h"
#include "engine/work.h"
#include "transport/transport.h"

namespace perseus {

// One request of a batch and this rank's work for it; none where this rank has joined.
struct Task {
  const Request* request = nullptr;
  Work* work = nullptr;
};

// Collective over the transport's group, whose ranks in the job are `world_ranks`. All tasks are of one kind (see
// fuse.h). Blocks; never throws. What goes wrong on all ranks alike, before data moved, is in Work::failure.
Status execute(Transport& transport, const std::vector<int>& world_ranks, const std::vector<Task>& tasks);

}  // namespace perseus
