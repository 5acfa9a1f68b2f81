// Chooses the bootstrap of this process by its launcher: none, perseusrun, an mpirun, or a program with a store.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local/launcher.h"
#include "bootstrap/mpi.h"
#include "bootstrap/store.h"

namespace perseus {

struct BootstrapOptions {
  LauncherEnvironment environment;
  Launcher launcher;
  std::string mpi_library;  // empty: search for it
  bool mpi_threads = true;  // request MPI_THREAD_MULTIPLE
  int streams = 1;          // see MpiJob
  bool insists_on_streams = false;
  std::chrono::milliseconds start_timeout{60'000};
  int generation = 0;                         // counts the calls of init() with this selection, the same on all ranks
  std::vector<int> selection = {};            // started ranks that take part, in this order; empty: all
  std::optional<Rendezvous> rendezvous = {};  // the ranks, regardless of the launcher
};

// Makes the bootstrap. Collective over the started ranks. Throws Error.
std::unique_ptr<Bootstrap> choose_bootstrap(const BootstrapOptions& options);

}  // namespace perseus
