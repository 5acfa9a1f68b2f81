#include "engine/session/runtime.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace perseus {

namespace {

struct Runtime {
  // Held while a session starts or stops. Other ranks may be waited for, and Python may run meanwhile, so no thread
  // takes it that holds the GIL.
  std::mutex changing;
  std::mutex mutex;  // guards the rest, except `forked`; held for moments, in which no other code runs
  std::shared_ptr<Session> session;
  std::map<std::vector<int>, int> generations;  // how often each selection of ranks was started
  bool starting = false;
  bool failed = false;   // the last session failed, or lost a rank
  bool cut_off = false;  // the last session lost a host that sent no shutdown message
  std::atomic<bool> forked{false};
};

// Never destroyed: at the end of a process, Python decides when the session ends, not the order of static destructors.
Runtime& runtime() {
  static auto* the_one = new Runtime;
  return *the_one;
}

// The child has none of the session's threads, and must not look alive to the peers after its parent has died.
void after_fork_in_child() {
  auto& state = runtime();
  state.mutex.unlock();
  if (state.session || state.starting) state.forked = true;
  if (state.session) state.session->abandon_after_fork();
}

// Returns the options of the session that is to start, or nothing if one is running.
std::optional<BootstrapOptions> begin_start(BootstrapOptions options) {
  auto& state = runtime();
  const std::scoped_lock lock(state.mutex);
  if (state.session) return std::nullopt;
  options.generation = state.generations[options.selection]++;
  state.starting = true;
  return options;
}

void end_start(std::shared_ptr<Session> session) {
  auto& state = runtime();
  const std::scoped_lock lock(state.mutex);
  state.starting = false;
  if (!session) return;
  state.session = std::move(session);
  state.failed = state.cut_off = false;
}

}  // namespace

void start_session(Config config, BootstrapOptions options) {
  auto& state = runtime();
  if (state.forked) {
    throw Error(
        ErrorKind::not_initialized,
        "init() was called in a process forked from an initialised one, so it is no rank itself; communicate in "
        "the process that it was forked from, or start ranks with perseusrun or mpirun");
  }
  const std::scoped_lock changing(state.changing);
  static std::once_flag once;
  std::call_once(once, [] {
    // A child must not find the mutex held by a thread that it does not have.
    pthread_atfork([] { runtime().mutex.lock(); }, [] { runtime().mutex.unlock(); }, after_fork_in_child);
  });
  const auto chosen = begin_start(std::move(options));
  if (!chosen) return;
  std::shared_ptr<Session> session;
  try {
    session = std::make_shared<Session>(std::move(config), *chosen);
  } catch (...) {
    end_start(nullptr);
    throw;
  }
  end_start(std::move(session));
}

void stop_session() {
  auto& state = runtime();
  if (state.forked) return;
  const std::scoped_lock changing(state.changing);
  std::shared_ptr<Session> session;
  {
    const std::scoped_lock lock(state.mutex);
    session = std::exchange(state.session, nullptr);
  }
  if (!session) return;
  const auto& liveness = session->liveness();
  const bool failed = session->failed_itself() || liveness.any_lost();
  const bool cut_off = liveness.is_cut_off();
  {
    const std::scoped_lock lock(state.mutex);
    state.failed = state.failed || failed;
    state.cut_off = state.cut_off || cut_off;
  }
  session->close();  // another thread may keep the session for a moment longer, perhaps with the GIL held
}

bool has_session_failed() {
  auto& state = runtime();
  std::scoped_lock lock(state.mutex);
  return state.failed;
}

bool was_session_cut_off() {
  auto& state = runtime();
  std::scoped_lock lock(state.mutex);
  return state.cut_off;
}

bool is_session_running() {
  auto& state = runtime();
  if (state.forked) return false;
  const std::scoped_lock lock(state.mutex);
  return state.session != nullptr;
}

bool is_forked_child() { return runtime().forked; }

std::shared_ptr<Session> running_session(bool also_in_child) {
  auto& state = runtime();
  if (state.forked && !also_in_child) {
    throw Error(ErrorKind::not_initialized,
                "collectives do not work in a process forked after init() (a DataLoader worker, say); "
                "call them in the process that called init()");
  }
  const std::scoped_lock lock(state.mutex);
  if (!state.session) {
    throw Error(ErrorKind::not_initialized, "perseus_like has not been initialized; call init() first");
  }
  return state.session;
}

}  // namespace perseus
