// Intel's oneCCL from 2022 on, on host memory.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/topology.h"
#include "transport/xccl/library.h"
#include "transport/xccl/search.h"

namespace perseus::xccl {

// oneCCL's own environment variables are set where the user has not: the plugin for host memory, the local ranks, and
// what it connects ranks through: Intel MPI where `has_intel_mpi`, else libfabric. Throws Error(unavailable).
std::shared_ptr<const Library> open_oneccl(const Places& places, const Topology& topology, bool has_intel_mpi);

}  // namespace perseus::xccl
