// Declares the bootstrap for ranks that an mpirun or srun has started. transport/mpi implements it, because only that
// folder uses libmpi.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local/launcher.h"

namespace perseus {

struct MpiJob {
  Launcher launcher;
  LauncherEnvironment environment;
  std::string library;              // PERSEUS_MPI_LIBRARY; empty: search for it
  bool threads = true;              // request MPI_THREAD_MULTIPLE
  int streams = 1;                  // connections between two hosts, if this MPI supports several
  bool insists_on_streams = false;  // the user has set the number
  std::chrono::milliseconds start_timeout{60'000};
  std::vector<int> selection = {};  // ranks of MPI's world that take part, in this order; empty: all
};

// Opens and initializes MPI unless it is initialized, and makes a communicator. Collective over the selected ranks.
// Throws Error(unavailable) that names the launcher and says what to do if no fitting libmpi is found.
std::unique_ptr<Bootstrap> make_mpi_bootstrap(const MpiJob& job);

// Returns the size of the world of an MPI that mpi4py or the user's code has initialized in this process; 0 if none.
int running_mpi_size();

// Returns true if the MPI of this process allows calls by several threads at once; false without an MPI.
bool is_mpi_multithreaded();

// Finalizes MPI at the end of the process, if this library has initialized it. (MPI cannot be initialized twice, so a
// session does not finalize it.) Returns false if the other ranks did not shut down within `limit`. If `exit_code` is
// not 0, the other ranks have one second to fail as well. After that, MPI is not finalized, and the launcher ends the
// job when this process ends. MPICH's mpirun overlooks that, and Intel's the code, so there the job is aborted with
// `exit_code`, which ends this process at once, unless perseusrun has started the mpirun.
bool finalize_mpi(int exit_code, std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace perseus
