// Settings by which every rank decides for itself what to do next, so that all must have the same.
#pragma once

#include <string>

#include "base/config.h"
#include "bootstrap/bootstrap.h"

namespace perseus {

// Gives all ranks rank 0's. On rank 0 the result says which ranks had others; it is empty where none had. Collective;
// throws Error, as Bootstrap::allgather.
std::string take_common_settings(Config& config, Bootstrap& bootstrap);

}  // namespace perseus
