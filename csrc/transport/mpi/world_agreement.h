// Agrees between ranks that no mpirun has started on one MPI world, so that all of them use MPI or none.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/mpi.h"

namespace perseus::mpi {

// The state of MPI on one rank before MPI_Init.
struct RankState {
  std::string problem;      // why this rank's MPI cannot be used; empty if it can
  std::string version;      // of the library
  std::string world;        // the name of the MPI world that the rank is already in; empty: none
  int rank_in_world = -1;   // the rank's number in that world
  std::string fresh_world;  // a proposed name for a new world
};

// The world on which the ranks have agreed.
struct Agreed {
  std::string world;
  std::vector<int> ranks;  // by rank of the rendezvous: its rank in the existing world; empty if the world is new
};

// Agrees on a world. Collective. Throws the same Error(unavailable) on all ranks.
Agreed agree(const MpiRendezvous& rendezvous, const RankState& mine);

// Collective. `failure` is the reason why this rank's MPI did not start, or empty. Throws Error(unavailable) on all
// ranks if MPI has failed on any.
void check_outcome(const MpiRendezvous& rendezvous, const std::string& failure);

}  // namespace perseus::mpi
