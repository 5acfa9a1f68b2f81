// Makes the fabric that connects ranks by MPI. Its groups share communicators, and several threads may use several
// groups at once.
#pragma once

#include <chrono>
#include <memory>

#include "bootstrap/bootstrap.h"
#include "bootstrap/watch/liveness.h"
#include "transport/fabric.h"
#include "transport/messages/control_messages.h"
#include "transport/mpi/library/api.h"

namespace perseus::mpi {

// Returns null if the ranks were not started by an MPI. A wait polls for the time `spin` before it sleeps between
// polls.
std::unique_ptr<Fabric> make_mpi_fabric(Bootstrap& bootstrap, Liveness& liveness,
                                        std::chrono::microseconds spin = std::chrono::microseconds(30));

// Makes the fabric of the ranks of a communicator. `limit`: for making communicators; 0: none. Throws Error.
std::unique_ptr<Fabric> connect_by(Api& api, Comm job, int streams, messages::ClosingChannels& closing_channels,
                                   const messages::WaitOptions& options, std::chrono::milliseconds limit);

// Returns true if an mpirun or srun has started the ranks, so that they have met by MPI.
bool is_mpi(const Bootstrap& bootstrap);

// Returns true if the ranks are connected by Intel MPI.
bool is_intel(const Bootstrap& bootstrap);

}  // namespace perseus::mpi
