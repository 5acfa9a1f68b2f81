// Chooses the libmpi that this process opens, and checks that it belongs to the launcher of the ranks.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/mpi.h"
#include "transport/mpi/library/api.h"

namespace perseus::mpi {

// Returns the path of the library that the user has set, else of one that fits the launcher. Throws Error(unavailable)
// that says what to do.
std::string choose_library(const MpiJob& job);

// Opens a library. `loaded` means that it is already loaded in this process. Throws Error(unavailable).
std::unique_ptr<Api> open_api(const std::string& path, bool loaded);

// Opens the libfabric of Intel's wheel, which is beside libmpi, where the loader does not search.
void open_libfabric(const std::string& libmpi);

// Throws Error(unavailable) if Open MPI's mpirun left its variables but not the server that its ranks connect to, as in
// a process that inherited or copied them. MPI_Init would end such a process, with a message about a remote shell.
void check_server(const MpiJob& job);

// Both throw Error(unavailable) if the library, or the world that it sees, is not the launcher's.
void check_family(const Api& api, const Launcher& launcher, const std::string& path, bool loaded);
void check_world(Api& api, const Launcher& launcher, const std::string& path);

}  // namespace perseus::mpi
