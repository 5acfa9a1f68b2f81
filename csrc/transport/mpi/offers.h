// What ranks that no mpirun has started tell each other around MPI_Init, so that all of them go on, or none.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/mpi.h"

namespace perseus::mpi {

struct Offer {
  std::string problem;      // why this rank's MPI cannot be used; empty: it can
  std::string version;      // of the library
  std::string world;        // the name of the MPI world that it is in already; empty: none
  int rank_in_world = -1;   // its rank there
  std::string fresh_world;  // a name for a new one, in case
};

struct Agreed {
  std::string world;
  std::vector<int> ranks;  // of the world that there is already, by rank of the meeting; empty: it is to be made
};

// Collective. Throws Error(unavailable), the same on all ranks.
Agreed agree(const MpiMeeting& meeting, const Offer& mine);

// Collective: `failure` is why this rank's MPI did not start, or empty. Throws Error(unavailable) on all ranks where it
// has failed on any.
void check_outcome(const MpiMeeting& meeting, const std::string& failure);

}  // namespace perseus::mpi
