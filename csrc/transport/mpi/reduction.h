// Allreduce and reduce-scatter over one communicator: every element is combined once, in the order of ranks, by the
// rank that owns it. The bytes on the wire are the least possible, as with a ring, but values are rounded once only,
// the latency does not grow with the ranks, and a rank uses a connection to each peer.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/mpi/communicator.h"
#include "transport/transport.h"

namespace perseus::mpi {

// Memory kept between calls.
struct Staging {
  std::vector<std::byte> packed;         // what goes out, of type wire
  std::vector<std::byte> contributions;  // what came in, a few segments of every peer
};

// As Transport's. Both throw Error.
void allreduce(Communicator& communicator, Staging& staging, const Reduction& reduction, Pieces in, Pieces out);
void reduce_scatter(Communicator& communicator, Staging& staging, const Reduction& reduction, const void* in, void* out,
                    Counts counts);

}  // namespace perseus::mpi
