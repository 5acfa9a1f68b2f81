// Opens NCCL, for the memory of NVIDIA's GPUs.
#pragma once

#include <memory>

#include "transport/library_search.h"
#include "transport/xccl/libraries/library.h"

namespace perseus::xccl {

// Throws Error(unavailable) that says what to install. Opening the library needs no GPU; a communicator does.
std::shared_ptr<const Library> open_nccl(const LibraryPaths& paths);

}  // namespace perseus::xccl
