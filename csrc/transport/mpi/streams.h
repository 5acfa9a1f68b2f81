// Several connections between two ranks, as one TCP connection seldom fills a link: what MPIs that can have them need
// in the environment before MPI_Init, and how many there are afterwards.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bootstrap/launcher.h"

namespace perseus::mpi {

struct Streams {
  int count = 1;
  std::string why_one;                                         // where `count` is 1 though more were wanted
  std::vector<std::pair<std::string, std::string>> variables;  // to be set before MPI_Init
};

struct StreamWish {
  int count = 1;
  std::string version, device;  // as Api has them
  bool initialized = false;     // MPI runs already: nothing can be set any more
  bool fast_network = false;    // MPI finds something better than TCP by itself
};

// MPICH has them over libfabric's tcp provider, a "VCI" each and one more for everything else; Intel MPI as endpoints
// of its split threads, for which the communicators say whose they are. Open MPI has none. What the user has set stays.
Streams plan_streams(const StreamWish& wish, const LauncherEnvironment& environment);

// InfiniBand and its like, RoCE, EFA, Omni-Path or Slingshot on this host.
bool has_fast_network();

}  // namespace perseus::mpi
