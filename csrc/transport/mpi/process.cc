#include "transport/mpi/process.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "bootstrap/selection.h"
#include "transport/messages/communicator.h"
#include "transport/mpi/abandonable_call.h"
#include "transport/mpi/connections.h"
#include "transport/mpi/library/library.h"
#include "transport/mpi/library/search.h"
#include "transport/mpi/streams.h"

namespace perseus::mpi {
namespace {

// The tag for MPI_Comm_create_group. Communicators of process sets have other parents.
constexpr int kSelectionTag = 1;

constexpr const char* kFinalized = "MPI_Finalize was already called in this process, and MPI cannot start again";

// The state of MPI. It outlives a session, because a process can initialize MPI only once.
struct State {
  std::mutex mutex;  // guards the rest
  std::unique_ptr<Api> api;
  std::string path;
  pid_t initialized_by = 0;  // the process; a forked child must not finalize its parent's MPI
  Comm final_barrier{};      // the communicator of the last barrier
  int streams = 1;
  bool is_reported = false;                    // by rank_main.py, which reports the end of this process to perseusrun
  std::string broken;                          // why MPI is unusable; a thread may still be in it
  messages::ClosingChannels closing_channels;  // has its own mutex
  SendGuard sends;                             // as well
};

State& state() {
  static auto* state = new State;  // never destroyed: threads of MPI may outlive static objects
  return *state;
}

// Sets the variables for several streams before MPI_Init.
Streams arrange_streams(Api& api, const MpiJob& job, bool initialized) {
  // Hydra states the number of ranks on this host. If all ranks are on this host, streams are not needed.
  if (job.environment.get("MPI_LOCALNRANKS") == std::to_string(job.launcher.size)) return {};
  const StreamOptions options{.count = job.streams,
                              .version = api.version(),
                              .device = api.device(),
                              .initialized = initialized,
                              .fast_network = has_fast_network()};
  auto streams = plan_streams(options, job.environment);
  for (const auto& [name, value] : streams.variables) set_environment(name, value);
  return streams;
}

// Logs the streams between MPI_Init and the first session.
void agree(State& state, const MpiJob& job, const Streams& streams) {
  Api& api = *state.api;
  state.streams = streams.count;
  if (streams.why_one.empty() || api.rank(api.world()) != 0) return;
  log(job.insists_on_streams ? LogLevel::warning : LogLevel::info,
      "using one stream between hosts instead of " + std::to_string(job.streams) + ": " + streams.why_one);
}

// Unlinks the files in /dev/shm by which MPICH shares memory among the ranks of a host, which would stay if a rank was
// killed. Processes that have mapped the memory keep it, and the kernel frees it when the last of them ends. Call it
// after all ranks have returned from MPI_Init: MPICH opens the files only there. (Open MPI opens memory at the first
// message to a peer, and its daemon removes the files.)
void unlink_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto at = line.find("/dev/shm/mpich_");
    if (at == std::string::npos || line.ends_with("(deleted)")) continue;
    // Another rank of the host may have unlinked the file already.
    [[maybe_unused]] const auto done = unlink(line.c_str() + at);
  }
}

void own(State& state, Comm final_barrier) {
  state.initialized_by = getpid();
  state.final_barrier = final_barrier;
  unlink_shared_memory();
}

// Calls what waits for the other ranks, and gives up after a limit.
template <class Result>
Result call_in_time(State& state, const std::function<Result()>& call, const CallLimit& limit) {
  try {
    return run_abandonable<Result>(call, nullptr, limit);
  } catch (const Error& error) {
    if (may_still_run(error)) state.broken = error.what();
    throw;
  }
}

// MPI_Init waits for ranks that still import modules, so its default limit is longer than that of the other steps.
bool initialize_in_time(State& state, const MpiJob& job) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(10);
  CallLimit limit{.limit = job.start_timeout, .what = "MPI_Init has not returned"};
  if (!job.environment.get("PERSEUS_START_TIMEOUT") && !job.environment.get("HOROVOD_START_TIMEOUT")) {
    limit.limit = std::max(job.start_timeout, kLongest);
    if (job.launcher.rank <= 0) limit.warning = job.start_timeout;
  }
  return call_in_time<bool>(
      state, [api = state.api.get(), threads = job.threads] { return api->initialize(threads); }, limit);
}

void initialize(State& state, const MpiJob& job, bool loaded) {
  Api& api = *state.api;
  if (api.finalized()) throw Error(ErrorKind::unavailable, kFinalized);
  const bool ours = !api.initialized();
  if (ours) {
    check_family(api, job.launcher, state.path, loaded);
    check_server(job);
    if (api.family() == Family::intel) open_libfabric(state.path);
  }
  const auto streams = arrange_streams(api, job, !ours);
  if (!initialize_in_time(state, job)) {
    log(LogLevel::warning,
        "MPI was initialised by this program without MPI_THREAD_MULTIPLE: its own MPI calls must not "
        "overlap collectives of perseus_like. Ask for it with MPI_Init_thread, or call init() first");
  }
  check_world(api, job.launcher, state.path);
  agree(state, job, streams);
  state.is_reported = job.environment.get("PERSEUS_RANK_MAIN").has_value();
  if (!ours) return;
  own(state, call_in_time<Comm>(state, [&api, selection = job.selection] { return communicator_of(api, selection); },
                                {.limit = job.start_timeout}));
}

// The time within which other failing ranks reach the final barrier. Ranks that hang in a collective never do.
constexpr std::chrono::milliseconds kGrace{1000};

// Receives last messages, which MPI_Finalize might wait for. Some ranks may be late, or may have lost others before.
void end_channels(messages::ClosingChannels& channels) {
  constexpr std::chrono::milliseconds kPatience{300};
  auto since = std::chrono::steady_clock::now();
  for (auto left = channels.sweep(); left > 0 && std::chrono::steady_clock::now() - since < kPatience;) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    const auto before = std::exchange(left, channels.sweep());
    if (left < before) since = std::chrono::steady_clock::now();
  }
}

// Waits until all ranks shut down and have ended their channels; only then does MPI_Finalize return soon.
Status end_together(Api& api, Comm comm, messages::ClosingChannels& channels, std::chrono::milliseconds limit) {
  try {
    messages::Communicator everybody(make_network(api, {comm}), {.limit = limit});
    // Once more for ranks that were late. A channel that ends late may still send, and a send to a rank after its
    // MPI_Finalize does not return.
    for (int round = 0; round < 2; ++round) {
      end_channels(channels);
      everybody.barrier();
    }
    return {};
  } catch (const Error& error) {
    return Status::from(error);
  }
}

// The same for a failing rank, which may hang in MPI because another rank has ended.
Status end_together_or_abandon(Api& api, Comm comm, messages::ClosingChannels& channels,
                               std::chrono::milliseconds limit) {
  try {
    const auto end = [&api, &channels, comm, limit] { return end_together(api, comm, channels, limit); };
    return run_abandonable<Status>(end, nullptr, {.limit = limit + kGrace});
  } catch (const Error&) {
    return {ErrorKind::timed_out, "not all ranks have shut down in time"};
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
      // The process ends anyway, and MPI has written its message.
    }
    const std::scoped_lock lock(progress->mutex);
    progress->done = true;
    progress->changed.notify_all();
  }).detach();
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, limit, [&] { return progress->done; });
}

// Ends this process without MPI_Finalize, so that the launcher ends the job. It calls no functions at exit, because a
// thread may still be in MPI.
[[noreturn]] void end_process(Api& api, bool is_reported, int exit_code) {
  std::fflush(nullptr);
  // Hydra of MPICH 5 does not notice an exit code other than 0 while other ranks are running, and Intel's returns 255.
  // Under perseusrun, rank_main.py reports the exit code. An abort could kill it before.
  if (api.family() != Family::openmpi && !is_reported) {
    try {
      run_abandonable<bool>([&api, exit_code] { return api.abort(exit_code), true; }, nullptr, {.limit = kGrace});
    } catch (const Error&) {
      kill(getpid(), SIGKILL);  // the thread in MPI keeps MPI_Abort waiting; Hydra notices a signal
    }
  }
  _exit(exit_code);
}

}  // namespace

Api& start(const MpiJob& job) {
  State& mpi = state();
  const std::scoped_lock lock(mpi.mutex);
  if (!mpi.broken.empty()) {
    throw Error(ErrorKind::unavailable, "MPI cannot be used any more in this process: " + mpi.broken);
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
      if (mpi.broken.empty()) mpi.api.reset();
      throw;
    }
  }
  if (mpi.api->finalized()) throw Error(ErrorKind::unavailable, kFinalized);
  return *mpi.api;
}

Comm communicator_of(Api& api, const std::vector<int>& selection) {
  const auto world = api.world();
  const int size = api.size(world);
  if (selects_all(selection, size)) return api.duplicate(world);
  rank_in_selection(selection, api.rank(world), size);
  return api.create(world, selection, kSelectionTag);
}

SendGuard& sends() { return state().sends; }

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

messages::ClosingChannels& closing_channels() { return state().closing_channels; }

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

bool finalize_mpi(int exit_code, std::chrono::milliseconds limit) {
  auto& mpi = mpi::state();
  const std::scoped_lock lock(mpi.mutex);
  if (!mpi.api || mpi.initialized_by != getpid() || !mpi.broken.empty() || mpi.api->finalized()) return true;
  mpi::Api& api = *mpi.api;
  const bool failing = exit_code != 0;
  const auto barrier_limit = failing ? std::min(limit, mpi::kGrace) : limit;
  // A send to a rank that has ended, or that is outside MPI, may not return from MPI.
  const auto lost = mpi.sends.status();
  auto& channels = mpi.closing_channels;
  const auto left = !lost.ok() ? lost
                    : failing  ? mpi::end_together_or_abandon(api, mpi.final_barrier, channels, barrier_limit)
                               : mpi::end_together(api, mpi.final_barrier, channels, barrier_limit);
  if (left.ok()) return mpi::finalize_within(api, limit);
  if (!failing) log(LogLevel::warning, "ending without MPI_Finalize: " + left.text());
  if (failing) {
    // The barrier takes this time otherwise.
    if (!lost.ok()) std::this_thread::sleep_for(mpi::kGrace);
    mpi::end_process(api, mpi.is_reported, exit_code);
  }
  return false;
}

}  // namespace perseus
