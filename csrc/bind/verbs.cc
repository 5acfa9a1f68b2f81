#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bind/work_items.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

PythonHandle broadcast(Naming name, const py::list& inputs, const py::object& outputs, int root, int process_set,
                       py::object tensors) {
  auto work = work_with_outputs(Verb::broadcast, std::move(name), inputs.ptr(), outputs.ptr());
  work->request.root = root;
  return submit(std::move(work), process_set, false, std::move(tensors));
}

PythonHandle allgather(Naming name, const py::list& inputs, int process_set, py::object tensors,
                       const py::object& outputs) {
  auto work = work_for(Verb::allgather, std::move(name), inputs.ptr());
  write_to(*work, outputs.ptr());
  return submit(std::move(work), process_set, false, std::move(tensors));
}

PythonHandle alltoall(Naming name, const py::tuple& input, const std::optional<std::vector<std::int64_t>>& splits,
                      int process_set, py::object tensors, const std::optional<std::vector<std::int64_t>>& expected) {
  py::list inputs;
  inputs.append(input);
  auto work = work_for(Verb::alltoall, std::move(name), inputs.ptr());
  if (splits) work->splits = *splits;
  if (expected) {
    work->expected = *expected;
    work->request.checked = true;
  }
  return submit(std::move(work), process_set, false, std::move(tensors));
}

PythonHandle reduce_scatter(Naming name, const py::list& inputs, const py::tuple& options, int process_set,
                            py::object tensors, const py::object& outputs) {
  auto work = work_for(Verb::reduce_scatter, std::move(name), inputs.ptr());
  write_to(*work, outputs.ptr());
  const ReduceOptions reduction(options.ptr());
  if (reduction.wire_dtype >= 0) {
    throw Error(ErrorKind::invalid_argument,
                work->request.label() + ": a reduce-scatter cannot convert values on the way; pass no wire dtype");
  }
  reduction.apply_to(work->request);
  return submit(std::move(work), process_set, reduction.average, std::move(tensors));
}

// Sends to `peer` if `outgoing`, and else receives from it, or from any rank if `peer` is -1. Ranks count within the
// set. Both sides must have the same `own_dtype`, the framework's name of a dtype that the core does not have.
PythonHandle post(const py::tuple& tensor, int peer, std::int64_t tag, bool outgoing, int process_set,
                  py::object tensors, std::string own_dtype) {
  const View view(tensor.ptr());
  if (view.device() != kHost) throw Error(ErrorKind::invalid_argument, "messages are of tensors on the CPU");
  const auto member = view.member();
  auto operation = std::make_shared<PointToPointOp>();
  operation->outgoing = outgoing;
  operation->peer = peer;
  operation->tag = tag;
  operation->data = view.address();
  operation->dtype = member.dtype;
  operation->count = count_of(member.shape);
  operation->own_dtype = std::move(own_dtype);
  return {running_session()->post(process_set, std::move(operation)), std::move(tensors)};
}

PythonHandle about_sets(Verb verb, std::string name, std::vector<std::int64_t> ranks) {
  auto work = work_for(verb, {std::move(name), {}});
  work->request.ranks = std::move(ranks);
  return {running_session()->submit(kWorld, std::move(work), false), py::none()};
}

PythonHandle add_process_set(const std::vector<std::int64_t>& ranks) {
  const auto running = running_session();
  const auto size = running->topology().size();
  if (ranks.empty()) throw Error(ErrorKind::invalid_argument, "a process set needs at least one rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      throw Error(ErrorKind::invalid_argument, "rank " + std::to_string(ranks[i]) +
                                                   " of the process set is outside the job of " + std::to_string(size) +
                                                   " ranks");
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      throw Error(ErrorKind::invalid_argument, "ranks of a process set must be ascending and different");
    }
  }
  return about_sets(Verb::add_process_set, "process set", ranks);
}

}  // namespace

void bind_verbs(py::module_& module) {
  module.def("broadcast", &broadcast);
  module.def("allgather", &allgather, py::arg("name"), py::arg("inputs"), py::arg("process_set"), py::arg("tensors"),
             py::arg("outputs") = py::none());
  module.def("alltoall", &alltoall, py::arg("name"), py::arg("input"), py::arg("splits"), py::arg("process_set"),
             py::arg("tensors"), py::arg("expected") = py::none());
  module.def("reduce_scatter", &reduce_scatter, py::arg("name"), py::arg("inputs"), py::arg("options"),
             py::arg("process_set"), py::arg("tensors"), py::arg("outputs") = py::none());
  module.def("barrier", [](Naming name, int process_set) {
    return submit(work_for(Verb::barrier, std::move(name)), process_set, false, py::none());
  });
  module.def("post", &post, py::arg("tensor"), py::arg("peer"), py::arg("tag"), py::arg("outgoing"),
             py::arg("process_set"), py::arg("tensors"), py::arg("own_dtype") = "");
  module.def(
      "join",
      [](int process_set, int device) {
        auto joining = [&] {
          const py::gil_scoped_release released;  // another thread may be opening the device
          return running_session()->join(process_set, {}, device);
        }();
        return PythonHandle(std::move(joining), py::none());
      },
      py::arg("process_set"), py::arg("device") = -1);
  module.def("add_process_set", &add_process_set);
  module.def("remove_process_set", [](int id) { return about_sets(Verb::remove_process_set, "process set", {id}); });
  module.def("process_set_ranks", [](int id) { return running_session(true)->ranks_of(id); });
  module.def("process_set_ids", [] { return running_session(true)->set_ids(); });
}

}  // namespace perseus::bind
