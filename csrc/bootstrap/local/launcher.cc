#include "bootstrap/local/launcher.h"

#include <array>

#include "base/error.h"

namespace perseus {
namespace {

constexpr std::array<std::string_view, 6> kKinds{"none", "perseusrun", "openmpi", "mpich", "intel", "slurm"};

}  // namespace

LauncherKind launcher_kind(std::string_view kind) {
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (kKinds.at(i) == kind) return static_cast<LauncherKind>(i);
  }
  throw Error(ErrorKind::invalid_argument, "there is no launcher '" + std::string(kind) + "'");
}

std::string_view name_of(LauncherKind kind) {
  switch (kind) {
    case LauncherKind::none: return "no launcher";
    case LauncherKind::perseusrun: return "perseusrun";
    case LauncherKind::openmpi: return "Open MPI's mpirun";
    case LauncherKind::mpich: return "MPICH's mpirun";
    case LauncherKind::intel: return "Intel MPI's mpirun";
    case LauncherKind::slurm: return "Slurm's srun";
  }
  return "?";
}

}  // namespace perseus
