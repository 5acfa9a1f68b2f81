// The Python type of a collective in progress. It does not use pybind11, which registers each object that it makes and
// so costs more than submitting a small tensor.
#include <new>
#include <utility>

#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

struct HandleObject {
  PyObject ob_base;
  PythonHandle pending;
};

// Lives as long as the process.
PyTypeObject* the_type = nullptr;

PythonHandle& pending_of(PyObject* object) { return reinterpret_cast<HandleObject*>(object)->pending; }

void deallocate(PyObject* object) {
  auto* type = Py_TYPE(object);
  pending_of(object).~PythonHandle();
  type->tp_free(object);
  Py_DECREF(type);
}

// Sleeps without the GIL until the result is there; on an accelerator, makes the current stream wait for it. Throws
// Error.
void wait_for(const PythonHandle& pending) {
  if (!pending.handle.completion->done()) pending.wait();
  pending.handle.completion->status().throw_if_failed();
  arrive(pending.handle);
}

PyObject* done(PyObject* self, PyObject*) {
  const auto& pending = pending_of(self);
  if (!pending.handle.completion->done()) pending.poll();
  return PyBool_FromLong(pending.handle.completion->done());
}

PyObject* wait(PyObject* self, PyObject*) {
  return to_python([self] {
    wait_for(pending_of(self));
    return Py_NewRef(Py_None);
  });
}

PyObject* result(PyObject* self, PyObject*) {
  return to_python([self] {
    wait_for(pending_of(self));
    return Py_NewRef(pending_of(self).tensors.ptr());
  });
}

PyMethodDef methods[] = {{"done", &done, METH_NOARGS, nullptr},
                         {"wait", &wait, METH_NOARGS, nullptr},
                         {"result", &result, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&deallocate)}, {Py_tp_methods, methods}, {0, nullptr}};

PyType_Spec spec = {"perseus_like._core.Handle", sizeof(HandleObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

}  // namespace

py::object make_handle_type() {
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  the_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  Py_INCREF(the_type);
  return type;
}

PyObject* new_handle(PythonHandle&& pending) {
  auto* object = the_type->tp_alloc(the_type, 0);
  if (object == nullptr) throw py::error_already_set();
  new (&pending_of(object)) PythonHandle(std::move(pending));
  return object;
}

const PythonHandle* python_handle_in(PyObject* object) {
  return PyObject_TypeCheck(object, the_type) ? &pending_of(object) : nullptr;
}

}  // namespace perseus::bind
