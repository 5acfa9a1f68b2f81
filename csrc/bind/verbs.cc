#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bind/works.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

Pending adasum(Naming name, const py::list& inputs, const py::object& outputs, double prescale, double postscale,
               int wire_dtype, int process_set, py::object tensors) {
  auto work = work_with_outputs(Verb::adasum, std::move(name), inputs.ptr(), outputs.ptr());
  auto& request = work->request;
  request.scale = {prescale, postscale, 1};
  set_wire(request, wire_dtype);
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending broadcast(Naming name, const py::list& inputs, const py::object& outputs, int root, int process_set,
                  py::object tensors) {
  auto work = work_with_outputs(Verb::broadcast, std::move(name), inputs.ptr(), outputs.ptr());
  work->request.root = root;
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending allgather(Naming name, const py::list& inputs, int process_set, py::object tensors) {
  auto work = work_for(Verb::allgather, std::move(name), inputs.ptr());
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending alltoall(Naming name, const py::tuple& input, const std::optional<std::vector<std::int64_t>>& splits,
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

Pending reduce_scatter(Naming name, const py::list& inputs, int op, bool average, double prescale, double postscale,
                       int process_set, py::object tensors) {
  auto work = work_for(Verb::reduce_scatter, std::move(name), inputs.ptr());
  work->request.op = op_of(op);
  work->request.scale = {prescale, postscale, 1};
  return submit(std::move(work), process_set, average, std::move(tensors));
}

// `outgoing`: to `peer`; else from it, or from anybody where it is -1. Ranks are those in the set.
Pending post(const py::tuple& tensor, int peer, std::int64_t tag, bool outgoing, int process_set, py::object tensors) {
  const View view(tensor.ptr());
  if (view.device() != kHost) throw Error(ErrorKind::invalid_argument, "messages are of tensors on the CPU");
  const auto member = view.member();
  auto letter = std::make_shared<Letter>();
  letter->outgoing = outgoing;
  letter->peer = peer;
  letter->tag = tag;
  letter->data = view.address();
  letter->dtype = member.dtype;
  letter->count = count_of(member.shape);
  return {running_session()->post(process_set, std::move(letter)), std::move(tensors)};
}

Pending about_sets(Verb verb, std::string name, std::vector<std::int64_t> ranks) {
  auto work = work_for(verb, {std::move(name), {}});
  work->request.ranks = std::move(ranks);
  return {running_session()->submit(kWorld, std::move(work), false), py::none()};
}

Pending add_process_set(const std::vector<std::int64_t>& ranks) {
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
  module.def("adasum", &adasum);
  module.def("broadcast", &broadcast);
  module.def("allgather", &allgather);
  module.def("alltoall", &alltoall, py::arg("name"), py::arg("input"), py::arg("splits"), py::arg("process_set"),
             py::arg("tensors"), py::arg("expected") = py::none());
  module.def("reduce_scatter", &reduce_scatter);
  module.def("barrier", [](Naming name, int process_set) {
    return submit(work_for(Verb::barrier, std::move(name)), process_set, false, py::none());
  });
  module.def("post", &post);
  module.def("join", [](int process_set) { return Pending(running_session()->join(process_set), py::none()); });
  module.def("add_process_set", &add_process_set);
  module.def("remove_process_set", [](int id) { return about_sets(Verb::remove_process_set, "process set", {id}); });
  module.def("process_set_ranks", [](int id) { return running_session(true)->ranks_of(id); });
  module.def("process_set_ids", [] { return running_session(true)->set_ids(); });
}

}  // namespace perseus::bind
