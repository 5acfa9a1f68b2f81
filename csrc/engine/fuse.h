// Small reductions that were decided together travel together.
#pragma once

#include <cstdint>
#include <vector>

#include "control/request.h"

namespace perseus {

// Indices into the list that was fused, in its order.
using Batch = std::vector<std::size_t>;

// The same on all ranks, since it sees nothing but the plan: allreduces and broadcasts of one kind (dtype, op, scale,
// wire, root, device) share a batch of at most `threshold_bytes`; everything else, and what is large enough to reach
// the memory's or the wire's speed by itself, stays alone. `requests` are not owned.
std::vector<Batch> fuse(const std::vector<const Request*>& requests, std::int64_t threshold_bytes);

}  // namespace perseus
