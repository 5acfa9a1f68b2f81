// Which bootstrap this process needs: nobody started it, perseusrun did, an mpirun, or somebody with a store.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/launcher.h"
#include "bootstrap/mpi.h"
#include "bootstrap/store.h"

namespace perseus {

struct BootstrapOptions {
  LauncherEnvironment environment;
  std::string mpi_library;  // empty: found by itself
  bool mpi_threads = true;  // ask MPI for its mode for several threads
  int streams = 1;          // as in MpiJob
  bool insists_on_streams = false;
  std::chrono::milliseconds start_timeout{60'000};
  int generation = 0;               // which init of this process with this selection it is, counted alike on all ranks
  std::vector<int> selection = {};  // these of the ranks that were started, in this order; empty: all
  std::optional<Meeting> meeting = {};  // the ranks are these, whoever started them
};

// All of it but who started the ranks.
MpiJob mpi_job(const BootstrapOptions& options);

// Collective over the ranks that were started. Throws Error.
std::unique_ptr<Bootstrap> choose_bootstrap(const BootstrapOptions& options);

}  // namespace perseus
