#include <pybind11/stl.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bootstrap/mpi.h"
#include "capi/api.h"
#include "capi/callbacks.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// An OwnLauncher of perseus_like/launchers.py: its kind, the rank, the size, the evidence, perseusrun's socket.
using GivenLauncher = std::tuple<std::string, int, int, std::string, std::string>;

void start(const std::map<std::string, std::string>& settings, const std::string& python_prefix,
           const std::optional<GivenLauncher>& launcher, const std::vector<int>& selection,
           const std::optional<std::tuple<int, int, py::function>>& rendezvous, int cancel_fd, int lost) {
  std::optional<Rendezvous> met;
  if (rendezvous) {
    met = {std::get<0>(*rendezvous), std::get<1>(*rendezvous), bootstrap_allgather_by(std::get<2>(*rendezvous)),
           cancel_fd, lost};
  }
  const py::gil_scoped_release released;
  auto config = Config::read(settings);
  BootstrapOptions options;
  options.environment.lookup = environment;
  options.environment.python_prefix = python_prefix;
  if (launcher) {
    const auto& [kind, rank, size, evidence, socket] = *launcher;
    options.launcher = {launcher_kind(kind), rank, size, evidence, socket};
  }
  options.mpi_library = config.mpi_library;
  options.mpi_threads = config.mpi_threads;
  options.streams = config.streams;
  options.insists_on_streams = config.streams_are_given;
  options.start_timeout = config.start_timeout;
  options.selection = selection;
  options.rendezvous = std::move(met);
  start_session(std::move(config), options);
}

void stop() {
  if (is_forked_child()) return;
  const py::gil_scoped_release released;
  stop_session();
  callbacks().end(std::chrono::seconds(1));
}

// Finalizes MPI when this process has ended its interpreter, since only then its exit code is known: Python forgets the
// code of a SystemExit before it calls the functions of `atexit`. As in every MPI program, a rank that succeeds waits
// for those that still work; if one of them dies, the launcher ends all.
void finalize_at_exit() {
  if (is_forked_child()) return;
  const auto finalize = [](int exit_code, void*) {
    finalize_mpi(exit_code == 0 && has_session_failed() ? 1 : exit_code, std::chrono::hours(24));
  };
  if (on_exit(finalize, nullptr) != 0) throw std::bad_alloc();
}

}  // namespace

void bind_lifecycle(py::module_& module) {
  module.def("start", &start, py::arg("settings"), py::arg("python_prefix"), py::arg("launcher") = py::none(),
             py::arg("selection") = std::vector<int>(), py::arg("rendezvous") = py::none(), py::arg("cancel_fd") = -1,
             py::arg("lost") = -1);
  module.def("stop", &stop);
  module.def("finalize_at_exit", &finalize_at_exit);
  module.def("was_cut_off", &was_session_cut_off);
  module.def("is_running", &is_session_running);
  module.def("is_mpi_multithreaded", &is_mpi_multithreaded, py::call_guard<py::gil_scoped_release>());
  module.def("c_api", [] { return reinterpret_cast<std::uintptr_t>(&c_api()); });
  module.def("mark_failing", [] {
    if (is_session_running()) running_session()->mark_failing();
  });
  module.def("start_timeline", [](const std::string& path, bool mark_cycles) {
    const auto running = running_session();
    const py::gil_scoped_release released;
    running->start_timeline(path, mark_cycles);
  });
  module.def("stop_timeline", [] {
    const auto running = running_session();
    const py::gil_scoped_release released;
    running->stop_timeline();
  });
  module.def("synchronize_device", [] {
    const auto running = running_session();
    const py::gil_scoped_release released;
    running->synchronize_device();
  });
  module.def("description", [] { return running_session()->description(); });

  const auto number = [&module](const char* name, auto getter) {
    module.def(name, [getter] { return getter(running_session(true)->topology()); });
  };
  number("rank", [](const Topology& t) { return t.rank(); });
  number("size", [](const Topology& t) { return t.size(); });
  number("local_rank", [](const Topology& t) { return t.local_rank(); });
  number("local_size", [](const Topology& t) { return t.local_size(); });
  number("cross_rank", [](const Topology& t) { return t.cross_rank(); });
  number("cross_size", [](const Topology& t) { return t.cross_size(); });
  number("is_homogeneous", [](const Topology& t) { return t.is_homogeneous(); });
  module.def("ranks_of_hosts", [] {
    const auto& topology = running_session(true)->topology();
    std::vector<std::vector<int>> hosts;
    hosts.reserve(static_cast<std::size_t>(topology.host_count()));
    for (int host = 0; host < topology.host_count(); ++host) hosts.push_back(topology.ranks_on(host));
    return hosts;
  });
}

}  // namespace perseus::bind
