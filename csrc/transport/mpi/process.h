// The MPI of this process: opened and initialised once, shared by all sessions that follow one another.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/mpi.h"
#include "transport/mpi/api.h"
#include "transport/mpi/post.h"
#include "transport/mpi/sends.h"

namespace perseus::mpi {

// Opens the libmpi that is already loaded, else the one that fits the launcher; initialises it unless that has
// happened; checks that its world is the launcher's. Later calls return the same. Throws Error(unavailable |
// transport).
Api& start(const MpiJob& job);

// The same for ranks that no mpirun has started (`job.meeting`), and for those of them that have been in one MPI world
// before: `ranks` are these ranks there, empty for all in order. Throws Error(unavailable) on all ranks alike, and what
// the exchange throws.
Api& start_met(const MpiJob& job, std::vector<int>& ranks);

// Of the library that is open.
std::optional<Family> family_in_use();

// Guards this process's sends once a rank is lost.
Sends& sends();

// Returns true if these ranks were started without an mpirun, which would end those that wait for a lost one.
bool has_no_mpirun();

// Of such ranks: MPI is left as it is from now on. It cannot lose a rank, and a thread may still wait in it.
void mark_broken(const std::string& why);

// A new communicator of these ranks of the world, of all where none are named. Collective over them.
Comm communicator_of(Api& api, const std::vector<int>& selection);

// Connections that data between two ranks can be spread over.
int stream_count();

// What channels of this process have left behind.
Retired& retired();

}  // namespace perseus::mpi
