// Plans several connections between two ranks, because one TCP connection seldom uses a link fully.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bootstrap/local/launcher.h"

namespace perseus::mpi {

// The number of connections, and the variables that MPI needs for them before MPI_Init.
struct Streams {
  int count = 1;
  std::string why_one;                                         // the reason if `count` is 1 though more were wanted
  std::vector<std::pair<std::string, std::string>> variables;  // set before MPI_Init
};

struct StreamOptions {
  int count = 1;
  std::string version, device;  // see Api
  bool initialized = false;     // MPI is initialized, so that variables have no effect any more
  bool fast_network = false;    // MPI finds a faster network than TCP by itself
};

// Plans the streams. MPICH has them over libfabric's tcp provider, with one VCI per stream and one more for all other
// messages. Intel MPI has them as endpoints of its split threads, which a communicator selects by an info key. Open MPI
// has none. Variables that the user has set stay as they are.
Streams plan_streams(const StreamOptions& options, const LauncherEnvironment& environment);

// Returns true if this host has InfiniBand, RoCE, EFA, Omni-Path or Slingshot.
bool has_fast_network();

}  // namespace perseus::mpi
