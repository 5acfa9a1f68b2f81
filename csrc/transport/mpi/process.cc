#include "transport/mpi/process.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "bootstrap/local_star.h"
#include "bootstrap/selection.h"
#include "transport/mpi/apart.h"
#include "transport/mpi/communicator.h"
#include "transport/mpi/leftovers.h"
#include "transport/mpi/library.h"
#include "transport/mpi/offers.h"
#include "transport/mpi/pmi_server.h"
#include "transport/mpi/search.h"
#include "transport/mpi/streams.h"

namespace perseus::mpi {
namespace {

// Of MPI_Comm_create_group. Communicators of process sets have other parents.
constexpr int kSelectionTag = 1;

constexpr const char* kFinalized = "MPI_Finalize was already called in this process, and MPI cannot start again";

// MPI itself is one per process and for once only, so this is the one thing here that outlives a session.
struct State {
  std::mutex mutex;  // guards the rest
  std::unique_ptr<Api> api;
  std::string path;
  pid_t initialized_by = 0;  // a forked child must not end its parent's MPI
  Comm farewell{};           // for the last barrier
  int streams = 1;
  std::unique_ptr<PmiServer> launcher;  // where no mpirun has started this process
  std::string world;                    // of such ranks: made up by the first of them
  std::string broken;                   // why MPI was given up; a thread may still be in it
  Retired retired;                      // has a mutex of its own
  Sends sends;                          // as well
};

State& state() {
  static auto* state = new State;  // never destroyed: threads of MPI may outlive static objects
  return *state;
}

// Sets what is to be set before MPI_Init.
Streams arrange_streams(Api& api, const MpiJob& job, bool initialized) {
  const auto is_first = [](int host) { return host == 0; };
  if (job.meeting && std::all_of(job.meeting->hosts.begin(), job.meeting->hosts.end(), is_first)) return {};
  // Hydra's word on who is on this host: where nobody is elsewhere there is nothing to arrange.
  if (!job.meeting && job.environment.get("MPI_LOCALNRANKS") == std::to_string(job.launcher.size)) return {};
  const StreamWish wish{.count = job.streams,
                        .version = api.version(),
                        .device = api.device(),
                        .initialized = initialized,
                        .fast_network = has_fast_network()};
  auto streams = plan_streams(wish, job.environment);
  for (const auto& [name, value] : streams.variables) set_environment(name, value);
  return streams;
}

// Between MPI_Init and the first session.
void settle(State& state, const MpiJob& job, const Streams& streams) {
  Api& api = *state.api;
  state.streams = streams.count;
  if (streams.why_one.empty() || api.rank(api.world()) != 0) return;
  log(job.insists_on_streams ? LogLevel::warning : LogLevel::info,
      "one stream between hosts, where " + std::to_string(job.streams) + " were asked for: " + streams.why_one);
}

void own(State& state, Comm farewell) {
  state.initialized_by = getpid();
  state.farewell = farewell;
  unlink_shared_memory();
}

void initialize(State& state, const MpiJob& job, bool loaded) {
  Api& api = *state.api;
  if (api.finalized()) throw Error(ErrorKind::unavailable, kFinalized);
  const bool ours = !api.initialized();
  if (ours) {
    check_family(api, job.launcher, state.path, loaded);
    if (api.family() == Family::intel) open_libfabric(state.path);
  }
  const auto streams = arrange_streams(api, job, !ours);
  if (!api.initialize(job.threads)) {
    log(LogLevel::warning,
        "MPI was initialised by this program without MPI_THREAD_MULTIPLE: its own MPI calls must not "
        "overlap collectives of perseus_like. Ask for it with MPI_Init_thread, or call init() first");
  }
  check_world(api, job.launcher, state.path);
  settle(state, job, streams);
  if (ours) own(state, communicator_of(api, job.selection));
}

// Opens the library; what keeps it from being used is said to the others.
Offer offer_of(State& mpi, const MpiJob& job) {
  Offer offer;
  offer.fresh_world = random_star_address();
  try {
    if (!mpi.broken.empty()) throw Error(ErrorKind::unavailable, "MPI was given up in this process: " + mpi.broken);
    if (!mpi.api) {
      mpi.path = loaded_library();
      const bool loaded = !mpi.path.empty();
      if (!loaded) mpi.path = choose_library(job);
      mpi.api = open_api(mpi.path, loaded);
    }
    Api& api = *mpi.api;
    offer.version = api.version();
    if (api.finalized()) throw Error(ErrorKind::unavailable, kFinalized);
    if (!mpi.world.empty()) {
      offer.world = mpi.world;
      offer.rank_in_world = api.rank(api.world());
    } else if (api.initialized()) {
      throw Error(ErrorKind::unavailable, "MPI was initialised before in this process, in a world of " +
                                              std::to_string(api.size(api.world())) +
                                              "; make the process group before anything else starts MPI");
    } else {
      check_starts_alone(api, mpi.path);
    }
  } catch (const Error& error) {
    offer.problem = error.what();
  }
  return offer;
}

// MPI_Init, with the ranks' word on how it went.
void initialize_met(State& mpi, const MpiJob& job, const std::string& world) {
  Api& api = *mpi.api;
  const auto& meeting = *job.meeting;
  std::string failure;
  mpi.broken = "not all of its ranks came";
  try {
    if (api.family() == Family::intel) open_libfabric(mpi.path);
    const auto streams = arrange_streams(api, job, false);
    mpi.launcher = std::make_unique<PmiServer>(meeting.rank, meeting.hosts, world, meeting.exchange);
    mpi.launcher->run([&api, threads = job.threads] { api.initialize(threads); }, job.start_timeout);
    if (api.size(api.world()) != static_cast<int>(meeting.hosts.size())) {
      throw Error(ErrorKind::unavailable, mpi.path + " (" + api.version() + ") sees a world of " +
                                              std::to_string(api.size(api.world())) + ": it cannot start without " +
                                              "its mpirun. Start the job with that, or install another MPI");
    }
    settle(mpi, job, streams);
  } catch (const Error& error) {
    failure = error.what();
  }
  if (!failure.empty()) mpi.broken = failure;
  check_outcome(meeting, failure);
  mpi.broken.clear();
}

// Others that fail as well are done by then; those that hang in a collective never are.
constexpr std::chrono::milliseconds kGrace{1000};

// Where no launcher ends those that wait for a rank that was lost, or that works on by itself.
constexpr std::chrono::milliseconds kPatience{5000};

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

// As above, where no launcher ends a process that hangs in MPI because of one that has ended.
Status all_leave_apart(Api& api, Comm comm, std::chrono::milliseconds limit) {
  try {
    const auto leave = [&api, comm, limit] { return all_leave(api, comm, limit); };
    return apart<Status>(leave, nullptr, limit + kGrace);
  } catch (const Error&) {
    return {ErrorKind::timed_out, "not all ranks are on their way out"};
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
  if (!mpi.broken.empty()) {
    throw Error(ErrorKind::unavailable, "MPI was given up in this process: " + mpi.broken);
  }
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
  if (mpi.api->finalized()) throw Error(ErrorKind::unavailable, kFinalized);
  return *mpi.api;
}

Api& start_met(const MpiJob& job, std::vector<int>& ranks) {
  State& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  const bool opened = mpi.api != nullptr;
  const auto mine = offer_of(mpi, job);
  Agreed agreed;
  try {
    agreed = agree(*job.meeting, mine);
  } catch (...) {
    if (!opened) mpi.api.reset();
    throw;
  }
  ranks = agreed.ranks;
  if (!ranks.empty()) return *mpi.api;
  initialize_met(mpi, job, agreed.world);
  mpi.world = agreed.world;
  const auto duplicate = [api = mpi.api.get()] { return api->duplicate(api->world()); };
  try {
    own(mpi, apart<Comm>(duplicate, nullptr, job.start_timeout));
  } catch (const Error& error) {
    mpi.broken = error.what();
    throw;
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

std::optional<Family> family_in_use() {
  auto& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  return mpi.api ? std::optional(mpi.api->family()) : std::nullopt;
}

Sends& sends() { return state().sends; }

bool has_no_mpirun() {
  auto& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  return mpi.launcher != nullptr;
}

void mark_broken(const std::string& why) {
  auto& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  mpi.broken = why;
}

int stream_count() {
  auto& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  return mpi.streams;
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
  if (!mpi.api || mpi.initialized_by != getpid() || !mpi.broken.empty() || mpi.api->finalized()) return true;
  mpi::Api& api = *mpi.api;
  const bool alone = mpi.launcher != nullptr;
  if (alone) limit = std::min(limit, mpi::kPatience);
  const auto patience = failing ? std::min(limit, mpi::kGrace) : limit;
  // A message to a rank that has ended may never come back from MPI.
  const auto lost = mpi.sends.status();
  const auto left = !lost.ok() ? lost
                    : alone    ? mpi::all_leave_apart(api, mpi.farewell, patience)
                               : mpi::all_leave(api, mpi.farewell, patience);
  if (left.ok()) return mpi::finalize_within(api, limit);
  if (!failing) log(alone ? LogLevel::info : LogLevel::warning, "MPI is left without MPI_Finalize: " + left.text());
  // Hydra of MPICH 5 does not notice an exit code other than 0 while other ranks are running.
  const bool overlooked = api.family() == mpi::Family::mpich || api.family() == mpi::Family::standard;
  if (failing && overlooked && !alone) {
    // all_leave() takes that long otherwise.
    if (!lost.ok()) std::this_thread::sleep_for(mpi::kGrace);
    api.abort(1);
  }
  return false;
}

}  // namespace perseus
