#include "bootstrap/launcher.h"

#include <charconv>
#include <initializer_list>

#include "base/error.h"

namespace perseus {
namespace {

// Returns −1 if the variable is not set.
int number(const LauncherEnvironment& environment, std::string_view name) {
  const auto text = environment.get(name);
  if (!text || text->empty()) return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0) {
    throw Error(ErrorKind::invalid_argument, std::string(name) + "='" + *text +
                                                 "' is not a number; start with perseusrun or an mpirun, which set it");
  }
  return value;
}

bool has_any(const LauncherEnvironment& environment, std::initializer_list<std::string_view> names) {
  for (const auto name : names) {
    if (environment.get(name)) return true;
  }
  return false;
}

Launcher numbered(const LauncherEnvironment& environment, LauncherKind kind, std::string_view rank,
                  std::string_view size) {
  Launcher launcher;
  launcher.kind = kind;
  launcher.rank = number(environment, rank);
  launcher.size = number(environment, size);
  launcher.evidence = std::string(size) + "=" + std::to_string(launcher.size);
  if (launcher.size == 0 || (launcher.size > 0 && launcher.rank >= launcher.size)) {
    throw Error(ErrorKind::invalid_argument, std::string(rank) + "=" + std::to_string(launcher.rank) + " contradicts " +
                                                 launcher.evidence +
                                                 "; start with perseusrun or an mpirun, which set both");
  }
  return launcher;
}

std::optional<Launcher> detect_mpirun(const LauncherEnvironment& environment) {
  if (environment.get("OMPI_COMM_WORLD_SIZE")) {
    return numbered(environment, LauncherKind::openmpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  }
  if (environment.get("PMI_SIZE")) {
    // srun's PMI-2 sets the same names as Hydra, and Hydra under Slurm inherits Slurm's. Hydra's own variables decide.
    const bool hydra = has_any(environment, {"HYDI_CONTROL_FD", "HYDRA_BSTRAP_LOCALHOST", "I_MPI_HYDRA_UUID",
                                             "PMI_PORT", "PMI_HOSTNAME", "MPI_LOCALNRANKS"});
    // A user may have set other I_MPI_… variables, but only Intel's mpirun sets these.
    const bool intel = has_any(environment, {"I_MPI_HYDRA_UUID", "I_MPI_INFO_NP", "HYDRA_BSTRAP_LOCALHOST"});
    auto kind = intel ? LauncherKind::intel : LauncherKind::mpich;
    if (!hydra && environment.get("SLURM_STEP_NUM_TASKS")) kind = LauncherKind::slurm;
    return numbered(environment, kind, "PMI_RANK", "PMI_SIZE");
  }
  if (environment.get("MV2_COMM_WORLD_SIZE")) {
    return numbered(environment, LauncherKind::mpich, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE");
  }
  return std::nullopt;
}

std::optional<Launcher> detect_perseusrun(const LauncherEnvironment& environment) {
  const auto rendezvous = environment.get("PERSEUS_RENDEZVOUS");
  if (!rendezvous || rendezvous->empty() || !environment.get("PERSEUS_SIZE")) return std::nullopt;
  auto launcher = numbered(environment, LauncherKind::perseusrun, "PERSEUS_RANK", "PERSEUS_SIZE");
  if (launcher.rank < 0) {
    throw Error(ErrorKind::invalid_argument, "PERSEUS_SIZE is set but PERSEUS_RANK is not: start with perseusrun");
  }
  launcher.rendezvous = *rendezvous;
  return launcher;
}

// Detects srun or a runtime with PMIx, if neither an mpirun nor perseusrun has set its variables.
std::optional<Launcher> detect_other(const LauncherEnvironment& environment) {
  const auto pmix_namespace = environment.get("PMIX_NAMESPACE");
  const bool pmix = environment.get("PMIX_RANK") && pmix_namespace;
  if (environment.get("SLURM_STEP_NUM_TASKS") && environment.get("SLURM_PROCID")) {
    auto launcher = numbered(environment, LauncherKind::slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    // A shell inside a step with one task (salloc, srun --pty) is not a job with several ranks.
    if (launcher.size == 1 && !pmix) return std::nullopt;
    return launcher;
  }
  if (!pmix) return std::nullopt;
  Launcher launcher;
  launcher.kind = LauncherKind::openmpi;
  launcher.rank = number(environment, "PMIX_RANK");
  launcher.evidence = "PMIX_NAMESPACE=" + *pmix_namespace;
  return launcher;
}

}  // namespace

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

// perseusrun removes the rank variables of an outer mpirun, so if both are set, the mpirun is the inner launcher.
Launcher detect_launcher(const LauncherEnvironment& environment) {
  if (auto launcher = detect_mpirun(environment)) return *launcher;
  if (auto launcher = detect_perseusrun(environment)) return *launcher;
  return detect_other(environment).value_or(Launcher{});
}

}  // namespace perseus
