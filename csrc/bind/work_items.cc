#include "bind/work_items.h"

#include <utility>

#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

template <typename Enum>
Enum checked(std::int64_t value, int count, const char* what) {
  if (value < 0 || value >= count) {
    throw Error(ErrorKind::invalid_argument, std::string("no ") + what + " has the number " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

void require_list(PyObject* object, const char* what) {
  if (!PyList_Check(object)) throw Error(ErrorKind::invalid_argument, std::string("a list of ") + what + " is needed");
}

}  // namespace

std::int64_t integer(PyObject* object) {
  const auto value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

double real(PyObject* object) {
  const auto value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

std::string text(PyObject* object) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

Naming naming(PyObject* object) {
  if (!PyTuple_Check(object)) return {text(object), {}, {}};
  const auto size = PyTuple_GET_SIZE(object);
  if (size != 2 && size != 3) {
    throw Error(ErrorKind::invalid_argument, "a name is a string, or a tuple of it and of what it is called");
  }
  return {text(PyTuple_GET_ITEM(object, 0)), text(PyTuple_GET_ITEM(object, 1)),
          size == 3 ? text(PyTuple_GET_ITEM(object, 2)) : std::string()};
}

DType dtype_of(std::int64_t value) { return checked<DType>(value, kDTypeCount, "dtype"); }
ReduceOp op_of(std::int64_t value) {
  return checked<ReduceOp>(value, static_cast<int>(ReduceOp::bxor) + 1, "reduce op");
}

View::View(PyObject* tuple) : tuple_(tuple) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4 || !PyTuple_Check(PyTuple_GET_ITEM(tuple, 2))) {
    throw Error(ErrorKind::invalid_argument, "a view is a tuple of address, dtype, shape and device");
  }
}

int View::device() const { return static_cast<int>(integer(PyTuple_GET_ITEM(tuple_, 3))); }

Member View::member() const {
  PyObject* extents = PyTuple_GET_ITEM(tuple_, 2);
  const auto dimensions = PyTuple_GET_SIZE(extents);
  Member member{dtype_of(integer(PyTuple_GET_ITEM(tuple_, 1))), Shape(static_cast<std::size_t>(dimensions))};
  for (Py_ssize_t i = 0; i < dimensions; ++i) {
    member.shape[static_cast<std::size_t>(i)] = integer(PyTuple_GET_ITEM(extents, i));
  }
  return member;
}

std::shared_ptr<WorkItem> work_for(Verb verb, Naming naming, PyObject* inputs) {
  auto work = std::make_shared<WorkItem>();
  auto& request = work->request;
  request.verb = verb;
  request.name = std::move(naming.name);
  request.call = std::move(naming.call);
  request.member_names = std::move(naming.members);
  if (inputs == nullptr) return work;
  require_list(inputs, "views");
  const auto count = PyList_GET_SIZE(inputs);
  request.members.reserve(static_cast<std::size_t>(count));
  work->inputs.reserve(static_cast<std::size_t>(count));
  int device = kHost;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const View view(PyList_GET_ITEM(inputs, i));
    const int place = view.device();
    if (i == 0) device = place;
    if (place != device) {
      throw Error(ErrorKind::invalid_argument, request.label() + ": the tensors are on several devices");
    }
    request.members.push_back(view.member());
    work->inputs.push_back(view.address());
  }
  if (device != kHost) {
    request.on_host = false;
    const auto stream = current_stream(device);
    const py::gil_scoped_release released;  // the first tensor opens the device
    work->completion.on_device = running_session()->on_device(device, stream, request.label());
  }
  return work;
}

std::shared_ptr<WorkItem> work_with_outputs(Verb verb, Naming naming, PyObject* inputs, PyObject* outputs) {
  auto work = work_for(verb, std::move(naming), inputs);
  if (outputs == Py_None) {
    work->outputs = work->inputs;
    return work;
  }
  require_list(outputs, "views");
  const auto count = PyList_GET_SIZE(outputs);
  if (static_cast<std::size_t>(count) != work->inputs.size()) {
    throw Error(ErrorKind::invalid_argument, "as many outputs as inputs are needed");
  }
  work->outputs.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) work->outputs.push_back(View(PyList_GET_ITEM(outputs, i)).address());
  return work;
}

void write_to(WorkItem& work, PyObject* outputs) {
  if (outputs == Py_None) return;
  require_list(outputs, "views");
  if (static_cast<std::size_t>(PyList_GET_SIZE(outputs)) != work.inputs.size()) {
    throw Error(ErrorKind::invalid_argument, "as many outputs as inputs are needed");
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
    const View output(PyList_GET_ITEM(outputs, i));
    if (output.device() == kHost) throw Error(ErrorKind::invalid_argument, "such outputs are on an accelerator");
    work.outputs.push_back(output.address());
    work.output_bytes.push_back(output.member().bytes());
  }
}

ReduceOptions::ReduceOptions(PyObject* tuple) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 5) {
    throw Error(ErrorKind::invalid_argument,
                "reduce options are a tuple of op, average, prescale, postscale and wire dtype");
  }
  op = op_of(integer(PyTuple_GET_ITEM(tuple, 0)));
  average = PyObject_IsTrue(PyTuple_GET_ITEM(tuple, 1)) != 0;
  scale = {real(PyTuple_GET_ITEM(tuple, 2)), real(PyTuple_GET_ITEM(tuple, 3)), 1};
  const auto wire = integer(PyTuple_GET_ITEM(tuple, 4));
  wire_dtype = wire < 0 ? std::int8_t{-1} : static_cast<std::int8_t>(dtype_of(wire));
}

void ReduceOptions::apply_to(Request& request) const {
  request.op = op;
  request.scale = scale;
  request.wire_dtype = wire_dtype;
}

PythonHandle submit(std::shared_ptr<WorkItem> work, int process_set, bool average, py::object tensors) {
  return {running_session()->submit(process_set, std::move(work), average), std::move(tensors)};
}

PythonHandle submit_quietly(std::shared_ptr<WorkItem> work, int process_set, bool average, py::object tensors) {
  PythonHandle pending{running_session()->submit(process_set, std::move(work), average, Notify::never),
                       std::move(tensors)};
  pending.quiet = true;
  return pending;
}

PythonHandle submit_and_wait(std::shared_ptr<WorkItem> work, int process_set, bool average, py::object tensors) {
  auto pending = submit_quietly(std::move(work), process_set, average, std::move(tensors));
  pending.wait();
  return pending;
}

}  // namespace perseus::bind
