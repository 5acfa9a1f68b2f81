// Opens Intel's oneCCL 2022 or later, for host memory.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/topology.h"
#include "transport/library_search.h"
#include "transport/xccl/libraries/library.h"

namespace perseus::xccl {

// Sets oneCCL's own environment variables unless the user has set them: the plugin for host memory, the local ranks,
// and the network layer, which is Intel MPI if `has_intel_mpi`, else libfabric. Throws Error(unavailable).
std::shared_ptr<const Library> open_oneccl(const LibraryPaths& paths, const Topology& topology, bool has_intel_mpi);

}  // namespace perseus::xccl
