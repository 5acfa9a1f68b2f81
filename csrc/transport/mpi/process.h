// Manages the MPI of this process, which is opened and initialized once and used by all its sessions in turn.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bootstrap/mpi.h"
#include "transport/messages/control_messages.h"
#include "transport/mpi/api.h"
#include "transport/mpi/send_guard.h"

namespace perseus::mpi {

// Opens the libmpi that is already loaded, else the one that fits the launcher, initializes it unless it is
// initialized, and checks that its world is the launcher's. Later calls return the same object. Throws
// Error(unavailable | transport).
Api& start(const MpiJob& job);

// The same for ranks that no mpirun has started (`job.rendezvous`). If these ranks have been in one MPI world before,
// `ranks` becomes their ranks there; it is empty for all ranks in order. Throws the same Error(unavailable) on all
// ranks, and what the exchange throws.
Api& start_by_rendezvous(const MpiJob& job, std::vector<int>& ranks);

// Returns the family of the open library.
std::optional<Family> family_in_use();

// Returns the guard of this process's sends.
SendGuard& sends();

// Returns true if these ranks were started without an mpirun, which would end those that wait for a lost one.
bool has_no_mpirun();

// Marks MPI as unusable in this process, for ranks without an mpirun: MPI cannot continue after the loss of a rank, and
// a thread may still wait in it.
void mark_broken(const std::string& why);

// Makes a communicator of these ranks of the world, or of all ranks if the list is empty. Collective over them.
Comm communicator_of(Api& api, const std::vector<int>& selection);

// Returns the number of connections between two ranks over which data can be spread.
int stream_count();

// Returns the communicators of this process's destroyed channels.
messages::ClosingChannels& closing_channels();

}  // namespace perseus::mpi
