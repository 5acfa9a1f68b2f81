#include "bootstrap/choose.h"

#include "bootstrap/local/local.h"
#include "bootstrap/mpi.h"
#include "bootstrap/selection.h"

namespace perseus {
namespace {

std::unique_ptr<Bootstrap> make_mpi(const BootstrapOptions& options) {
  MpiJob job;
  job.launcher = options.launcher;
  job.environment = options.environment;
  job.library = options.mpi_library;
  job.threads = options.mpi_threads;
  job.streams = options.streams;
  job.insists_on_streams = options.insists_on_streams;
  job.start_timeout = options.start_timeout;
  job.selection = options.selection;
  return make_mpi_bootstrap(job);
}

}  // namespace

std::unique_ptr<Bootstrap> choose_bootstrap(const BootstrapOptions& options) {
  if (options.rendezvous) return std::make_unique<StoreBootstrap>(*options.rendezvous);
  const auto& launcher = options.launcher;
  // If the user's program has initialized MPI, its world is the job, regardless of the launcher.
  if (running_mpi_size() > 1) return make_mpi(options);
  if (launcher.size == 1 || launcher.kind == LauncherKind::none) {
    if (!options.selection.empty()) rank_in_selection(options.selection, 0, 1);
    return std::make_unique<SingleBootstrap>();
  }
  if (launcher.kind == LauncherKind::perseusrun) {
    LocalJob job;
    job.rank = launcher.rank;
    job.size = launcher.size;
    job.address = launcher.rendezvous;
    job.generation = options.generation;
    job.selection = options.selection;
    job.start_timeout = options.start_timeout;
    return std::make_unique<LocalBootstrap>(job);
  }
  return make_mpi(options);
}

}  // namespace perseus
