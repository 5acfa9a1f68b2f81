// The parts of the module `_core`, one file each.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "engine/runtime.h"

namespace perseus::bind {

void bind_enums(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_finished(pybind11::module_& module);
void bind_groups(pybind11::module_& module);
void bind_handle(pybind11::module_& module);
void bind_lifecycle(pybind11::module_& module);
void bind_verbs(pybind11::module_& module);
void bind_settings(pybind11::module_& module);
void bind_measure(pybind11::module_& module);

// A collective under way, as Python has it. The tensors live until the work is complete, whatever becomes of this.
struct Pending {
  Handle handle;
  pybind11::object tensors;

  Pending(Handle work, pybind11::object keep) : handle(std::move(work)), tensors(std::move(keep)) {}
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = delete;
  ~Pending();
};

// Memory of the core's, as Python's buffer protocol shows it.
struct Buffer {
  std::shared_ptr<void> memory;
  DType dtype;
  Shape shape;

  std::size_t bytes() const { return static_cast<std::size_t>(count_of(shape)) * size_of(dtype); }
};

}  // namespace perseus::bind
