#include <pthread.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bootstrap/mpi.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

struct Runtime {
  std::mutex mutex;  // guards the rest, but for `forked`
  std::shared_ptr<Session> session;
  std::map<std::vector<int>, int> generations;  // how often each selection of ranks was started
  std::atomic<bool> forked{false};
};

// Never destroyed: at the end of a process Python decides when to leave, not the order of static objects.
Runtime& runtime() {
  static auto* the_one = new Runtime;
  return *the_one;
}

// The child has none of the session's threads, and must not look alive to the peers once its parent has died.
void after_fork_in_child() {
  auto& state = runtime();
  if (!state.session) return;
  state.forked = true;
  state.session->abandon_after_fork();
}

void start(const std::map<std::string, std::string>& settings, const std::string& python_prefix,
           const std::vector<int>& selection) {
  auto& state = runtime();
  const py::gil_scoped_release released;
  std::scoped_lock lock(state.mutex);
  if (state.forked) {
    throw Error(ErrorKind::not_initialized,
                "init() was called in a process forked from an initialised one; start "
                "ranks with perseusrun or mpirun, or use the 'spawn' start method");
  }
  if (state.session) return;
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
  auto config = Config::read(settings);
  BootstrapOptions options;
  options.environment.lookup = environment;
  options.environment.python_prefix = python_prefix;
  options.mpi_library = config.mpi_library;
  options.mpi_threads = config.mpi_threads;
  options.start_timeout = config.start_timeout;
  options.selection = selection;
  options.generation = state.generations[selection]++;
  state.session = std::make_shared<Session>(std::move(config), options);
}

void stop() {
  auto& state = runtime();
  if (state.forked) return;
  const py::gil_scoped_release released;
  std::scoped_lock lock(state.mutex);
  state.session.reset();
}

// As every MPI program, a rank that is done waits for those that still work; if one of them dies, the launcher ends
// all.
void finalize(bool failing) {
  if (runtime().forked) return;
  const py::gil_scoped_release released;
  finalize_mpi(failing, std::chrono::hours(24));
}

}  // namespace

std::shared_ptr<Session> session(bool also_in_child) {
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

void bind_lifecycle(py::module_& module) {
  module.def("start", &start, py::arg("settings"), py::arg("python_prefix"), py::arg("selection") = std::vector<int>());
  module.def("stop", &stop);
  module.def("finalize", &finalize, py::arg("failing"));
  module.def("is_running", [] { return runtime().session != nullptr && !runtime().forked; });
  module.def("is_mpi_multithreaded", [] { return is_mpi_multithreaded(); });
  module.def("mark_failing", [] {
    if (const auto running = runtime().session) running->mark_failing();
  });
  module.def("start_timeline", [](const std::string& path, bool mark_cycles) {
    const auto running = session();
    const py::gil_scoped_release released;
    running->start_timeline(path, mark_cycles);
  });
  module.def("stop_timeline", [] {
    const auto running = session();
    const py::gil_scoped_release released;
    running->stop_timeline();
  });
  module.def("description", [] { return session()->description(); });

  const auto number = [&module](const char* name, auto getter) {
    module.def(name, [getter] { return getter(session(true)->topology()); });
  };
  number("rank", [](const Topology& t) { return t.rank(); });
  number("size", [](const Topology& t) { return t.size(); });
  number("local_rank", [](const Topology& t) { return t.local_rank(); });
  number("local_size", [](const Topology& t) { return t.local_size(); });
  number("cross_rank", [](const Topology& t) { return t.cross_rank(); });
  number("cross_size", [](const Topology& t) { return t.cross_size(); });
  number("is_homogeneous", [](const Topology& t) { return t.is_homogeneous(); });
}

}  // namespace perseus::bind
