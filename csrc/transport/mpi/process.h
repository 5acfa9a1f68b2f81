// The MPI of this process: opened and initialised once, shared by all sessions that follow one another.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bootstrap/mpi.h"
#include "transport/mpi/api.h"
#include "transport/mpi/post.h"

namespace perseus::mpi {

// Opens the libmpi that is already loaded, else the one that fits the launcher; initialises it unless that has
// happened; checks that its world is the launcher's. Later calls return the same. Throws Error(unavailable |
// transport).
Api& start(const MpiJob& job);

// A new communicator of these ranks of the world, of all where none are named. Collective over them.
Comm communicator_of(Api& api, const std::vector<int>& selection);

// What channels of this process have left behind.
Retired& retired();

}  // namespace perseus::mpi
