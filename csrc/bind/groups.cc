// Groups of ranks that bring their own bootstrap allgather, and that other ranks do not know of.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

std::function<std::vector<std::string>(std::string_view mine)> bootstrap_allgather_by(py::function function) {
  const auto let_go = [](py::function* mine) {
    const py::gil_scoped_acquire acquired;
    delete mine;
  };
  const std::shared_ptr<py::function> shared(new py::function(std::move(function)), let_go);
  return [shared](std::string_view mine) {
    const py::gil_scoped_acquire acquired;
    return (*shared)(py::bytes(mine.data(), mine.size())).cast<std::vector<std::string>>();
  };
}

namespace {

int add_group(const std::vector<int>& ranks, py::function exchange, double timeout_seconds) {
  const auto running = running_session();
  const auto by = bootstrap_allgather_by(std::move(exchange));
  const py::gil_scoped_release released;
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds * 1000));
  return running->add_group(ranks, by, timeout);
}

void remove_group(int group, double grace_seconds) {
  const auto running = running_session();
  const py::gil_scoped_release released;
  running->remove_group(group, std::chrono::milliseconds(static_cast<std::int64_t>(grace_seconds * 1000)));
}

std::optional<std::vector<int>> missing(int process_set, const std::string& name, double limit_seconds) {
  const auto running = running_session();
  const py::gil_scoped_release released;
  const auto limit = std::chrono::milliseconds(static_cast<std::int64_t>(limit_seconds * 1000));
  return running->missing(process_set, name, ProcessSetEngine::Clock::now() + limit);
}

}  // namespace

void bind_groups(py::module_& module) {
  module.def("add_group", &add_group, py::arg("ranks"), py::arg("exchange"), py::arg("timeout_seconds") = 0.0);
  module.def("remove_group", &remove_group, py::arg("group"), py::arg("grace_seconds") = 1.0);
  module.def("missing", &missing, py::arg("process_set"), py::arg("name"), py::arg("limit_seconds"));
}

}  // namespace perseus::bind
