// The launcher that has started this process. perseus_like/launchers.py recognises it by its variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace perseus {

// The environment of the process. It is a parameter, so that tests can simulate any launcher.
struct LauncherEnvironment {
  std::function<std::optional<std::string>(std::string_view name)> lookup;
  std::string python_prefix;  // sys.prefix; wheels of MPI install bin/mpirun and lib/libmpi.so* there

  std::optional<std::string> get(std::string_view name) const { return lookup ? lookup(name) : std::nullopt; }
};

enum class LauncherKind {
  none,        // no launcher: a job of one rank
  perseusrun,  // local ranks, no MPI
  openmpi,     // Open MPI 4 and 5 (orterun, prterun)
  mpich,       // Hydra of MPICH and its relatives
  intel,       // Intel MPI's Hydra
  slurm,       // srun with its own PMI
};

struct Launcher {
  LauncherKind kind = LauncherKind::none;
  int rank = -1;  // as the launcher states it; −1: not stated
  int size = -1;
  std::string evidence;    // the variable by which it was detected, such as "PMI_SIZE=2", for error texts
  std::string rendezvous;  // only for perseusrun

  bool is_mpi() const { return kind != LauncherKind::none && kind != LauncherKind::perseusrun; }
};

// Returns the launcher with this name in the list above. Throws Error(invalid_argument) if there is none.
LauncherKind launcher_kind(std::string_view kind);

// Returns the name for texts, such as "MPICH's mpirun".
std::string_view name_of(LauncherKind kind);

}  // namespace perseus
