// Makes the fabric that executes collectives over oneCCL and uses another fabric for everything else.
#pragma once

#include <memory>

#include "bootstrap/topology.h"
#include "bootstrap/watch/liveness.h"
#include "transport/fabric.h"
#include "transport/library_search.h"

namespace perseus::xccl {

// `below` connects the same ranks and provides control messages, point-to-point messages and the arena. A group of one
// rank needs no library. If a rank cannot open the library, all ranks throw the same Error when the first group is
// made. `has_intel_mpi` means that Intel MPI has started the job.
std::unique_ptr<Fabric> make_oneccl_fabric(std::unique_ptr<Fabric> below, const Topology& topology, Liveness& liveness,
                                           const FabricOptions& options, bool has_intel_mpi);

}  // namespace perseus::xccl
