// Groups of ranks whose collectives oneCCL carries; all else stays with the fabric below.
#pragma once

#include <memory>

#include "bootstrap/liveness.h"
#include "bootstrap/topology.h"
#include "transport/fabric.h"
#include "transport/xccl/search.h"

namespace perseus::xccl {

// `below` connects the same ranks, and keeps control messages, messages between two ranks, and the arena. A group of
// one rank needs no library. Where it cannot be opened on some rank, all ranks throw alike when the first group is
// made. `has_intel_mpi`: the job was started with it.
std::unique_ptr<Fabric> make_oneccl_fabric(std::unique_ptr<Fabric> below, const Topology& topology, Liveness& liveness,
                                           const FabricOptions& options, bool has_intel_mpi);

}  // namespace perseus::xccl
