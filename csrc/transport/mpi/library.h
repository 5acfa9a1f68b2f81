// Which libmpi this process opens, and whether it belongs to whoever has started the ranks.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/mpi.h"
#include "transport/mpi/api.h"

namespace perseus::mpi {

// The one asked for, else the one that fits the launcher; for ranks that have none, one that can start without. Throws
// Error(unavailable) that names the remedy.
std::string choose_library(const MpiJob& job);

// `loaded`: it is in this process already. Throws Error(unavailable).
std::unique_ptr<Api> open_api(const std::string& path, bool loaded);

// Intel's wheel keeps libfabric beside libmpi, where the loader does not look, and its providers beside that.
void open_libfabric(const std::string& libmpi);

// Throws Error(unavailable) where this MPI needs an mpirun of its own, so that PmiServer cannot play its part.
void check_starts_alone(Api& api, const std::string& path);

// Both throw Error(unavailable): where the library, or the world that it sees, is not the launcher's.
void check_family(const Api& api, const Launcher& launcher, const std::string& path, bool loaded);
void check_world(Api& api, const Launcher& launcher, const std::string& path);

}  // namespace perseus::mpi
