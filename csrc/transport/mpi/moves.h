// The verbs that only move bytes, over one communicator. All throw Error.
#pragma once

#include <cstddef>

#include "transport/mpi/communicator.h"
#include "transport/transport.h"

namespace perseus::mpi {

// Few bytes go down a binomial tree, many through a chain in segments: each link carries them once.
void broadcast(Communicator& communicator, void* data, std::size_t bytes, int root);

// As Transport::allgather and alltoall.
void allgather(Communicator& communicator, const void* in, void* out, Counts bytes);
void alltoall(Communicator& communicator, const void* in, Counts send_bytes, void* out, Counts recv_bytes);

}  // namespace perseus::mpi
