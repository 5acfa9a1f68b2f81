// Manages the MPI of this process, which is opened and initialized once and used by all its sessions in turn.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/mpi.h"
#include "transport/messages/control_messages.h"
#include "transport/mpi/library/api.h"
#include "transport/mpi/send_guard.h"

namespace perseus::mpi {

// Opens the libmpi that is already loaded, else the one that fits the launcher, initializes it unless it is
// initialized, and checks that its world is the launcher's. Later calls return the same object. Throws
// Error(unavailable | transport).
Api& start(const MpiJob& job);

// Returns the guard of this process's sends.
SendGuard& sends();

// Marks MPI as unusable in this process, because a thread may still wait in it.
void mark_broken(const std::string& why);

// Makes a communicator of these ranks of the world, or of all ranks if the list is empty. Collective over them.
Comm communicator_of(Api& api, const std::vector<int>& selection);

// Returns the number of connections between two ranks over which data can be spread.
int stream_count();

// Returns the communicators of this process's destroyed channels.
messages::ClosingChannels& closing_channels();

}  // namespace perseus::mpi
