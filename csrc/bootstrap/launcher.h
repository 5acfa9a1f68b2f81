// Who started this process, read off the variables that each launcher leaves in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace perseus {

// What the process knows about its start. Handed in, so that tests can make up any launcher.
struct LauncherEnvironment {
  std::function<std::optional<std::string>(std::string_view name)> lookup;
  std::string python_prefix;  // sys.prefix: wheels of MPI put bin/mpirun and lib/libmpi.so* there

  std::optional<std::string> get(std::string_view name) const { return lookup ? lookup(name) : std::nullopt; }
};

enum class LauncherKind {
  none,        // started by hand: a job of one
  perseusrun,  // local ranks, no MPI
  openmpi,     // Open MPI 4 and 5 (orterun, prterun)
  mpich,       // Hydra of MPICH and its relatives
  intel,       // Intel MPI's Hydra
  slurm,       // srun with a PMI of its own
};

struct Launcher {
  LauncherKind kind = LauncherKind::none;
  int rank = -1;  // as the launcher says; -1: it does not say
  int size = -1;
  std::string evidence;    // "PMI_SIZE=2": what gave it away, for error texts
  std::string rendezvous;  // perseusrun only

  bool is_mpi() const { return kind != LauncherKind::none && kind != LauncherKind::perseusrun; }
};

// "MPICH's mpirun"
std::string_view name_of(LauncherKind kind);

// Throws Error(invalid_argument) when the variables contradict themselves.
Launcher detect_launcher(const LauncherEnvironment& environment);

}  // namespace perseus
