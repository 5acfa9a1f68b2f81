// The MPI of this process: opened and initialised once, shared by all sessions that follow one another.
#pragma once

#include <chrono>
#include <string>

#include "bootstrap/mpi.h"
#include "transport/mpi/api.h"
#include "transport/mpi/post.h"

namespace perseus::mpi {

// Opens the libmpi that is already loaded, else the one that fits the launcher; initialises it unless that has
// happened; checks that its world is the launcher's. Later calls return the same. Throws Error(unavailable |
// transport).
Api& start(const MpiJob& job);

// What channels of this process have left behind.
Retired& retired();

}  // namespace perseus::mpi
