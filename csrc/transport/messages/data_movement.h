// Implements the verbs that only move bytes, over one communicator. All functions throw Error.
#pragma once

#include <cstddef>

#include "transport/messages/communicator.h"
#include "transport/transport.h"

namespace perseus::messages {

// Broadcasts few bytes over a binomial tree, and many bytes in segments through a chain, in which each link carries
// them once.
void broadcast(Communicator& communicator, void* data, std::size_t bytes, int root);

// See Transport::allgather() and Transport::alltoall().
void allgather(Communicator& communicator, const void* in, void* out, Counts bytes);
void alltoall(Communicator& communicator, const void* in, Counts send_bytes, void* out, Counts recv_bytes);

}  // namespace perseus::messages
