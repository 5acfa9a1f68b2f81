#include "engine/runtime.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace perseus {

namespace {

struct Runtime {
  std::mutex mutex;  // guards the rest, except `forked`
  std::shared_ptr<Session> session;
  std::map<std::vector<int>, int> generations;  // how often each selection of ranks was started
  bool failed = false;                          // the last session failed, or lost a rank
  bool cut_off = false;                         // the last session lost a host that sent no shutdown message
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
  if (!state.session) return;
  state.forked = true;
  state.session->abandon_after_fork();
}

}  // namespace

void start_session(Config config, BootstrapOptions options) {
  auto& state = runtime();
  std::scoped_lock lock(state.mutex);
  if (state.forked) {
    throw Error(ErrorKind::not_initialized,
                "init() was called in a process forked from an initialised one; start "
                "ranks with perseusrun or mpirun, or use the 'spawn' start method");
  }
  if (state.session) return;
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
  options.generation = state.generations[options.selection]++;
  state.session = std::make_shared<Session>(std::move(config), options);
  state.failed = state.cut_off = false;
}

void stop_session() {
  auto& state = runtime();
  if (state.forked) return;
  std::scoped_lock lock(state.mutex);
  if (state.session) {
    const auto& liveness = state.session->liveness();
    state.failed = state.failed || state.session->failed_itself() || liveness.any_lost();
    state.cut_off = state.cut_off || liveness.is_cut_off();
  }
  state.session.reset();
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

bool is_session_running() { return runtime().session != nullptr && !runtime().forked; }

bool is_forked_child() { return runtime().forked; }

std::shared_ptr<Session> running_session(bool also_in_child) {
  auto& state = runtime();
  if (state.forked && !also_in_child) {
    throw Error(ErrorKind::not_initialized,
                "collectives do not work in a process forked after init() (a DataLoader worker, say); "
                "call them in the process that called init()");
  }
  // In a forked child another thread may have held the mutex; nobody writes there any more.
  std::unique_lock lock(state.mutex, std::defer_lock);
  if (!state.forked) lock.lock();
  if (!state.session) {
    throw Error(ErrorKind::not_initialized, "perseus_like has not been initialized; call init() first");
  }
  return state.session;
}

}  // namespace perseus
