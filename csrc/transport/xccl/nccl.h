// NCCL: for the memory of NVIDIA's GPUs.
#pragma once

#include <memory>

#include "transport/xccl/library.h"
#include "transport/xccl/search.h"

namespace perseus::xccl {

// Throws Error(unavailable) with what to install. Opening it needs no GPU; a communicator does.
std::shared_ptr<const Library> open_nccl(const Places& places);

}  // namespace perseus::xccl
