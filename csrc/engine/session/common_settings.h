// Settings that must be the same on all ranks, because each rank decides by them what to do next.
#pragma once

#include <string>

#include "base/config.h"
#include "bootstrap/bootstrap.h"

namespace perseus {

// Gives rank 0's values to all ranks. On rank 0 the result names the ranks that had other values; it is empty if none
// had. Collective; throws Error, as Bootstrap::allgather.
std::string take_common_settings(Config& config, Bootstrap& bootstrap);

}  // namespace perseus
