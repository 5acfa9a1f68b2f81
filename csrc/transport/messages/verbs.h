// Implements the verbs over one communicator. All functions throw Error.
#pragma once

#include <cstddef>

#include "base/memory/lent_memory.h"
#include "transport/messages/communicator.h"
#include "transport/transport.h"

namespace perseus::messages {

// Memory kept between calls.
struct Staging {
  LentVector<std::byte> packed;         // this rank's contribution, in the wire dtype
  LentVector<std::byte> contributions;  // received contributions, a few segments of every peer
};

// The rank that owns an element combines it once, in the order of ranks. The transferred bytes are the least possible,
// as with a ring. Unlike in a ring, values are rounded only once, the latency does not grow with the number of ranks,
// and a rank uses a connection to each peer. See Transport::allreduce() and Transport::reduce_scatter().
void allreduce(Communicator& communicator, Staging& staging, const Reduction& reduction, Pieces in, Pieces out);
void reduce_scatter(Communicator& communicator, Staging& staging, const Reduction& reduction, const void* in, void* out,
                    Counts counts);

// Broadcasts few bytes over a binomial tree, and many bytes in segments through a chain, in which each link carries
// them once.
void broadcast(Communicator& communicator, void* data, std::size_t bytes, int root);

// See Transport::allgather() and Transport::alltoall().
void allgather(Communicator& communicator, const void* in, void* out, Counts bytes);
void alltoall(Communicator& communicator, const void* in, Counts send_bytes, void* out, Counts recv_bytes);

}  // namespace perseus::messages
