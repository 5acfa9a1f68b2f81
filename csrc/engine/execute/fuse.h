// Fuses small reductions and broadcasts of one plan into batches.
#pragma once

#include <cstdint>
#include <vector>

#include "control/request.h"

namespace perseus {

// Indices into the list of requests, in its order.
using Batch = std::vector<std::size_t>;

// Returns the batches. The result is the same on all ranks, because it depends on the plan alone. Allreduces and
// broadcasts of one kind (dtype, op, scale, wire dtype, root, device) share a batch of at most `threshold_bytes`. Every
// other request stays alone, and so does a tensor that is large enough to reach full bandwidth by itself. `requests`
// are not owned.
std::vector<Batch> fuse(const std::vector<const Request*>& requests, std::int64_t threshold_bytes);

}  // namespace perseus
