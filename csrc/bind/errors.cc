#include <array>
#include <exception>
#include <new>
#include <utility>

#include "base/error.h"
#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

constexpr std::size_t kKinds = static_cast<std::size_t>(ErrorKind::shut_down) + 1;

// Classes handed in by perseus_like/errors.py. Never destroyed: the interpreter may be gone by then.
std::array<PyObject*, kKinds>& classes() {
  static std::array<PyObject*, kKinds> table{};
  return table;
}

void set(const Error& error) {
  PyObject* cls = classes()[static_cast<std::size_t>(error.kind())];
  PyErr_SetString(cls != nullptr ? cls : PyExc_RuntimeError, error.what());
}

}  // namespace

void raise_in_python() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set(error);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void bind_errors(py::module_& module) {
  module.def("set_error_class", [](int kind, const py::object& cls) {
    if (kind < 0 || static_cast<std::size_t>(kind) >= kKinds) throw py::value_error("no such ErrorKind");
    classes()[static_cast<std::size_t>(kind)] = py::object(cls).release().ptr();
  });
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(std::move(raised));
    } catch (const Error& error) {
      set(error);
    }
  });
}

}  // namespace perseus::bind
