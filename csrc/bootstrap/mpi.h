// Ranks started by an mpirun or srun. Declared here, made in transport/mpi, which alone knows libmpi.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/launcher.h"

namespace perseus {

// Ranks that no mpirun has started, and that make one MPI world nonetheless: this library plays the launcher's part.
struct MpiMeeting {
  int rank = 0;
  std::vector<int> hosts;               // every rank's, from 0, by rank
  std::vector<std::string> host_names;  // the same, for texts
  // Collective over the ranks: every rank's bytes, by rank.
  std::function<std::vector<std::string>(std::string_view mine)> exchange;
};

struct MpiJob {
  Launcher launcher;
  LauncherEnvironment environment;
  std::string library;              // PERSEUS_MPI_LIBRARY; empty: found by itself
  bool threads = true;              // ask MPI for its mode for several threads
  int streams = 1;                  // connections between two hosts, where this MPI can have several
  bool insists_on_streams = false;  // the user has said how many
  std::chrono::milliseconds start_timeout{60'000};
  std::vector<int> selection = {};         // these of the ranks of MPI's world, in this order; empty: all
  std::optional<MpiMeeting> meeting = {};  // the ranks are these, and no mpirun has started them
};

// Opens and initialises MPI unless that has happened, and makes a communicator. Collective over the ranks selected.
// Throws Error(unavailable) that names the launcher and the remedy when no fitting libmpi is found.
std::unique_ptr<Bootstrap> make_mpi_bootstrap(const MpiJob& job);

// The ranks of the MPI that somebody else (mpi4py, the user's own code) has initialised in this process; 0: none has.
int running_mpi_size();

// Whether the MPI that sessions of this process use allows calls by several threads at once; false without one.
bool is_mpi_multithreaded();

// For the end of the process, not of a session: MPI cannot be initialised twice. Ends the MPI that this library has
// initialised, if any; false when the other ranks did not come within `limit`. When `failing` they are given a second
// to fail as well. After that MPI is left as it is, and the launcher ends the job when it sees this process end; where
// launchers overlook that (MPICH's), the job is aborted, which ends this process with exit code 1 at once. Where no
// mpirun has started the ranks, nobody would end those that wait for a lost one: they wait a few seconds at most.
bool finalize_mpi(bool failing, std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace perseus
