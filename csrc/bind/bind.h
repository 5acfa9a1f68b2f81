// The parts of the module `_core`, one file each.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/execute/on_device.h"
#include "engine/session/runtime.h"

namespace perseus::bind {

void bind_allreduce(pybind11::module_& module);
void bind_enums(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_finished(pybind11::module_& module);
void bind_groups(pybind11::module_& module);
void bind_handle(pybind11::module_& module);
void bind_lifecycle(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_optimizer(pybind11::module_& module);
void bind_sharing(pybind11::module_& module);
void bind_verbs(pybind11::module_& module);
void bind_streams(pybind11::module_& module);
void bind_settings(pybind11::module_& module);

// A collective in progress, as Python holds it. The tensors live until the work is complete, even if this is dropped.
struct PythonHandle {
  Handle handle;
  pybind11::object tensors;
  // No thread has been woken for the work: a caller that waits drives the engine, and any other user calls notify()
  // first.
  mutable bool quiet = false;

  PythonHandle(Handle work, pybind11::object keep) : handle(std::move(work)), tensors(std::move(keep)) {}
  PythonHandle(PythonHandle&&) = default;
  PythonHandle& operator=(PythonHandle&&) = delete;
  ~PythonHandle();

  // Blocks without the GIL until the work is complete, or until `until`.
  void wait(ProcessSetEngine::Clock::time_point until = ProcessSetEngine::Clock::time_point::max()) const;
  // Runs a cycle of the engine without the GIL: a caller that asks again and again would take the processor from the
  // engine's thread.
  void poll() const;
  void notify() const {
    if (std::exchange(quiet, false)) handle.wake();
  }
};

// Makes the Python type of handles; see handle_type.cc. Methods may be added to the type.
pybind11::object make_handle_type();
PyObject* new_handle(PythonHandle&& pending);
// Returns the content of a Handle; null for another object.
const PythonHandle* python_handle_in(PyObject* object);

// Wraps `function(mine: bytes) -> list[bytes]`, whose result is by rank, as the bootstrap allgather by which ranks find
// each other. The result may be called and destroyed by threads that do not hold the GIL.
std::function<std::vector<std::string>(std::string_view mine)> bootstrap_allgather_by(pybind11::function function);

// Sets the Python error for the exception that is being handled.
void raise_in_python() noexcept;

// Wraps functions that Python calls without pybind11: returns what `action` returns, or null with the error set.
template <typename Action>
PyObject* to_python(const Action& action) noexcept {
  try {
    return action();
  } catch (...) {
    raise_in_python();
    return nullptr;
  }
}

// Memory that the core owns, for Python's buffer protocol.
struct Buffer {
  std::shared_ptr<void> memory;
  DType dtype;
  Shape shape;
  int device = -1;  // host memory

  std::size_t bytes() const { return static_cast<std::size_t>(count_of(shape)) * size_of(dtype); }
};

// Returns the stream on which the framework works now, on this thread. Needs the GIL. Throws what Python raised, or
// Error(unavailable) if no adapter has set a source.
Stream current_stream(int device);

// Makes the framework's current stream wait for the collective without blocking the host thread. Needs the GIL.
void arrive(const Handle& handle);

// See perseus::arrive_alone(). Needs the GIL.
void arrive_alone(const Handle& handle);

}  // namespace perseus::bind

// Lets functions bound by pybind11 take and return handles.
template <>
class pybind11::detail::type_caster<perseus::bind::PythonHandle> {
 public:
  static constexpr auto name = const_name("Handle");
  template <typename>
  using cast_op_type = const perseus::bind::PythonHandle&;

  bool load(handle source, bool) { return (pending_ = perseus::bind::python_handle_in(source.ptr())) != nullptr; }
  operator const perseus::bind::PythonHandle&() const { return *pending_; }
  static handle cast(perseus::bind::PythonHandle&& pending, return_value_policy, handle) {
    return perseus::bind::new_handle(std::move(pending));
  }

 private:
  const perseus::bind::PythonHandle* pending_ = nullptr;
};
