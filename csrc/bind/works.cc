#include "bind/works.h"

#include <utility>

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

DType dtype_of(std::int64_t value) { return checked<DType>(value, kDTypeCount, "dtype"); }
ReduceOp op_of(std::int64_t value) {
  return checked<ReduceOp>(value, static_cast<int>(ReduceOp::bxor) + 1, "reduce op");
}

View::View(PyObject* tuple) : tuple_(tuple) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4 || !PyTuple_Check(PyTuple_GET_ITEM(tuple, 2))) {
    throw Error(ErrorKind::invalid_argument, "a view is a tuple of address, dtype, shape and device");
  }
}

bool View::on_host() const { return integer(PyTuple_GET_ITEM(tuple_, 3)) == kHost; }

Member View::member() const {
  PyObject* extents = PyTuple_GET_ITEM(tuple_, 2);
  const auto dimensions = PyTuple_GET_SIZE(extents);
  Member member{dtype_of(integer(PyTuple_GET_ITEM(tuple_, 1))), Shape(static_cast<std::size_t>(dimensions))};
  for (Py_ssize_t i = 0; i < dimensions; ++i) {
    member.shape[static_cast<std::size_t>(i)] = integer(PyTuple_GET_ITEM(extents, i));
  }
  return member;
}

std::shared_ptr<Work> work_for(Verb verb, std::string name, PyObject* inputs) {
  auto work = std::make_shared<Work>();
  auto& request = work->request;
  request.verb = verb;
  request.name = std::move(name);
  if (inputs == nullptr) return work;
  require_list(inputs, "views");
  const auto count = PyList_GET_SIZE(inputs);
  request.members.reserve(static_cast<std::size_t>(count));
  work->inputs.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const View view(PyList_GET_ITEM(inputs, i));
    if (!view.on_host()) {
      throw Error(ErrorKind::invalid_argument, request.label() +
                                                   ": tensors on an accelerator are not supported yet; pass a copy "
                                                   "on the CPU");
    }
    request.members.push_back(view.member());
    work->inputs.push_back(view.address());
  }
  return work;
}

std::shared_ptr<Work> work_with_outputs(Verb verb, std::string name, PyObject* inputs, PyObject* outputs) {
  auto work = work_for(verb, std::move(name), inputs);
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

void set_wire(Request& request, std::int64_t wire_dtype) {
  if (wire_dtype >= 0) request.wire = static_cast<std::int8_t>(dtype_of(wire_dtype));
}

Pending submit(std::shared_ptr<Work> work, int process_set, bool average, py::object tensors) {
  return {running_session()->submit(process_set, std::move(work), average), std::move(tensors)};
}

Pending submit_and_wait(std::shared_ptr<Work> work, int process_set, bool average, py::object tensors) {
  auto handle = running_session()->submit(process_set, std::move(work), average, false);
  {
    const py::gil_scoped_release released;
    handle.lane->wait(*handle.completion, false);
  }
  return {std::move(handle), std::move(tensors)};
}

}  // namespace perseus::bind
