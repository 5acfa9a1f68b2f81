// The verbs that are called most often, without pybind11's dispatch, which saves half a microsecond per tensor.
#include "bind/work_items.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// The arguments are name, inputs, outputs, options, process_set, tensors, start: see _core.pyi.
constexpr Py_ssize_t kArguments = 7;

Start start_of(PyObject* object) {
  const auto number = integer(object);
#define PERSEUS_ROW(NAME, name) \
  if (number == static_cast<int>(Start::name)) return Start::name;
  PERSEUS_STARTS(PERSEUS_ROW)
#undef PERSEUS_ROW
  throw Error(ErrorKind::invalid_argument, "no start has the number " + std::to_string(number));
}

PythonHandle reduce(Verb verb, PyObject* const* arguments) {
  auto work = work_with_outputs(verb, naming(arguments[0]), arguments[1], arguments[2]);
  const ReduceOptions options(arguments[3]);
  options.apply_to(work->request);
  const auto process_set = static_cast<int>(integer(arguments[4]));
  auto tensors = py::reinterpret_borrow<py::object>(arguments[5]);
  switch (start_of(arguments[6])) {
    case Start::engine: break;
    case Start::call: return submit_and_wait(std::move(work), process_set, options.average, std::move(tensors));
    case Start::waiter: return submit_quietly(std::move(work), process_set, options.average, std::move(tensors));
  }
  return submit(std::move(work), process_set, options.average, std::move(tensors));
}

template <Verb verb>
PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != kArguments) {
    PyErr_Format(PyExc_TypeError, "a reduction takes %zd arguments, not %zd", kArguments, count);
    return nullptr;
  }
  return to_python([&] { return new_handle(reduce(verb, arguments)); });
}

template <Verb verb>
void bind(py::module_& module, const char* name) {
  static PyMethodDef definition = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call<verb>)),
                                   METH_FASTCALL, nullptr};
  module.attr(name) = py::reinterpret_steal<py::object>(PyCFunction_New(&definition, nullptr));
}

}  // namespace

void bind_allreduce(py::module_& module) {
  bind<Verb::allreduce>(module, "allreduce");
  bind<Verb::adasum>(module, "adasum");
}

}  // namespace perseus::bind
