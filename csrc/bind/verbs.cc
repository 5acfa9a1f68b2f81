#include <pybind11/stl.h>

#include <utility>

#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

template <typename Enum>
Enum checked(int value, int count, const char* what) {
  if (value < 0 || value >= count) {
    throw Error(ErrorKind::invalid_argument, std::string("no ") + what + " has the number " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

DType dtype_of(int value) { return checked<DType>(value, kDTypeCount, "dtype"); }
ReduceOp op_of(int value) { return checked<ReduceOp>(value, static_cast<int>(ReduceOp::bxor) + 1, "reduce op"); }

// A tensor as Python describes it: address, dtype, shape, device.
struct View {
  py::tuple fields;

  explicit View(const py::handle& item) : fields(py::reinterpret_borrow<py::tuple>(item)) {
    if (!py::isinstance<py::tuple>(item) || fields.size() != 4 || !py::isinstance<py::tuple>(fields[2])) {
      throw Error(ErrorKind::invalid_argument, "a view is a tuple of address, dtype, shape and device");
    }
  }
  void* address() const { return reinterpret_cast<void*>(fields[0].cast<std::uintptr_t>()); }
  int device() const { return fields[3].cast<int>(); }
  Member member() const {
    const auto extents = py::reinterpret_borrow<py::tuple>(fields[2]);
    Member member{dtype_of(fields[1].cast<int>()), {}};
    member.shape.reserve(extents.size());
    for (const auto& extent : extents) member.shape.push_back(extent.cast<std::int64_t>());
    return member;
  }
};

std::shared_ptr<Work> work_for(Verb verb, std::string name, const py::list& inputs = py::list()) {
  auto work = std::make_shared<Work>();
  auto& request = work->request;
  request.verb = verb;
  request.name = std::move(name);
  request.members.reserve(inputs.size());
  work->inputs.reserve(inputs.size());
  for (const auto& item : inputs) {
    const View view(item);
    if (view.device() != kHost) {
      throw Error(ErrorKind::invalid_argument, request.label() +
                                                   ": tensors on an accelerator are not supported yet; pass a copy "
                                                   "on the CPU");
    }
    request.members.push_back(view.member());
    work->inputs.push_back(view.address());
  }
  return work;
}

Pending submit(std::shared_ptr<Work> work, int process_set, bool average, py::object tensors) {
  return {running_session()->submit(process_set, std::move(work), average), std::move(tensors)};
}

// For a caller who has nothing else to do: complete on return, well or not.
Pending submit_and_wait(std::shared_ptr<Work> work, int process_set, bool average, py::object tensors) {
  auto handle = running_session()->submit(process_set, std::move(work), average, false);
  {
    const py::gil_scoped_release released;
    handle.lane->wait(*handle.completion, false);
  }
  return {std::move(handle), std::move(tensors)};
}

// `outputs` None: in place.
std::shared_ptr<Work> work_with_outputs(Verb verb, std::string name, const py::list& inputs,
                                        const std::optional<py::list>& outputs) {
  auto work = work_for(verb, std::move(name), inputs);
  if (!outputs) {
    work->outputs = work->inputs;
    return work;
  }
  if (outputs->size() != inputs.size())
    throw Error(ErrorKind::invalid_argument, "as many outputs as inputs are needed");
  work->outputs.reserve(outputs->size());
  for (const auto& item : *outputs) work->outputs.push_back(View(item).address());
  return work;
}

Pending allreduce(std::string name, const py::list& inputs, const std::optional<py::list>& outputs, int op,
                  bool average, double prescale, double postscale, int wire_dtype, int process_set, py::object tensors,
                  bool wait) {
  auto work = work_with_outputs(Verb::allreduce, std::move(name), inputs, outputs);
  auto& request = work->request;
  request.op = op_of(op);
  request.scale = {prescale, postscale, 1};
  if (wire_dtype >= 0) request.wire = static_cast<std::int8_t>(dtype_of(wire_dtype));
  const auto start = wait ? submit_and_wait : submit;
  return start(std::move(work), process_set, average, std::move(tensors));
}

Pending adasum(std::string name, const py::list& inputs, const std::optional<py::list>& outputs, double prescale,
               double postscale, int wire_dtype, int process_set, py::object tensors) {
  auto work = work_with_outputs(Verb::adasum, std::move(name), inputs, outputs);
  auto& request = work->request;
  request.scale = {prescale, postscale, 1};
  if (wire_dtype >= 0) request.wire = static_cast<std::int8_t>(dtype_of(wire_dtype));
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending broadcast(std::string name, const py::list& inputs, const std::optional<py::list>& outputs, int root,
                  int process_set, py::object tensors) {
  auto work = work_with_outputs(Verb::broadcast, std::move(name), inputs, outputs);
  work->request.root = root;
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending allgather(std::string name, const py::list& inputs, int process_set, py::object tensors) {
  auto work = work_for(Verb::allgather, std::move(name), inputs);
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending alltoall(std::string name, const py::tuple& input, const std::optional<std::vector<std::int64_t>>& splits,
                 int process_set, py::object tensors) {
  py::list inputs;
  inputs.append(input);
  auto work = work_for(Verb::alltoall, std::move(name), inputs);
  if (splits) work->splits = *splits;
  return submit(std::move(work), process_set, false, std::move(tensors));
}

Pending reduce_scatter(std::string name, const py::list& inputs, int op, bool average, double prescale,
                       double postscale, int process_set, py::object tensors) {
  auto work = work_for(Verb::reduce_scatter, std::move(name), inputs);
  work->request.op = op_of(op);
  work->request.scale = {prescale, postscale, 1};
  return submit(std::move(work), process_set, average, std::move(tensors));
}

// `outgoing`: to `peer`; else from it, or from anybody where it is -1. Ranks are those in the set.
Pending post(const py::tuple& tensor, int peer, std::int64_t tag, bool outgoing, int process_set, py::object tensors) {
  const View view(tensor);
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
  auto work = work_for(verb, std::move(name));
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
  module.def("allreduce", &allreduce);
  module.def("adasum", &adasum);
  module.def("broadcast", &broadcast);
  module.def("allgather", &allgather);
  module.def("alltoall", &alltoall);
  module.def("reduce_scatter", &reduce_scatter);
  module.def("barrier", [](std::string name, int process_set) {
    return submit(work_for(Verb::barrier, std::move(name)), process_set, false, py::none());
  });
  module.def("post", &post);
  module.def("join", [](int process_set) { return Pending(running_session()->join(process_set), py::none()); });
  module.def("add_process_set", &add_process_set);
  module.def("remove_process_set", [](int id) { return about_sets(Verb::remove_process_set, "process set", {id}); });
  module.def("process_set_ranks", [](int id) { return running_session(true)->ranks_of(id); });
  module.def("process_set_ids", [] { return running_session(true)->set_ids(); });
  module.def("allocate", [](const std::vector<std::int64_t>& shape, int dtype) {
    Buffer buffer{nullptr, dtype_of(dtype), shape};
    for (const auto extent : shape) {
      if (extent < 0) throw Error(ErrorKind::invalid_argument, "a dimension is negative");
    }
    buffer.memory = running_session()->allocate(buffer.bytes());
    return buffer;
  });
}

}  // namespace perseus::bind
