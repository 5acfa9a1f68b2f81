// Groups of ranks connected by MPI: own communicators for each, so that groups may run at once on several threads.
#pragma once

#include <chrono>
#include <memory>

#include "bootstrap/bootstrap.h"
#include "bootstrap/liveness.h"
#include "transport/fabric.h"

namespace perseus::mpi {

// Null when the ranks were not started by an MPI. `spin`: how long a wait polls before it begins to sleep between
// looks.
std::unique_ptr<Fabric> make_mpi_fabric(Bootstrap& bootstrap, Liveness& liveness,
                                        std::chrono::microseconds spin = std::chrono::microseconds(30));

// Whether the ranks are connected by Intel MPI.
bool is_intel(const Bootstrap& bootstrap);

}  // namespace perseus::mpi
