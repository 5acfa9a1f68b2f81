#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "base/mapping.h"
#include "bind/work_items.h"
#include "device/host/kernels.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// Releasing it waits for the device.
struct Registration {
  std::shared_ptr<void> memory;

  explicit Registration(std::shared_ptr<void> held) : memory(std::move(held)) {}
  ~Registration() {
    const py::gil_scoped_release released;
    memory.reset();
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
};

std::unique_ptr<Registration> register_memory(const py::tuple& tensor, int process_set) {
  const View view(tensor.ptr());
  if (view.device() == kHost) return nullptr;
  auto memory =
      running_session()->register_memory(process_set, view.address(), static_cast<std::size_t>(view.member().bytes()));
  if (!memory) return nullptr;
  return std::make_unique<Registration>(std::move(memory));
}

Buffer allocate(const std::vector<std::int64_t>& shape, int dtype) {
  Buffer buffer{nullptr, dtype_of(dtype), shape};
  for (const auto extent : shape) {
    if (extent < 0) throw Error(ErrorKind::invalid_argument, "a dimension is negative");
  }
  buffer.memory = running_session()->allocate(buffer.bytes());
  return buffer;
}

void copy_past_caches(const py::tuple& target, const py::tuple& source) {
  const View to(target.ptr()), from(source.ptr());
  const auto bytes = static_cast<std::size_t>(from.member().bytes());
  if (to.device() != kHost || from.device() != kHost || static_cast<std::size_t>(to.member().bytes()) != bytes) {
    throw Error(ErrorKind::invalid_argument, "copied are as many bytes as there is room for, on the host");
  }
  auto* const place = to.address();
  const auto* const data = from.address();
  const py::gil_scoped_release released;
  host::copy(place, data, bytes, host::Store::streaming);
}

void show_memory_at(std::uintptr_t place, const py::tuple& tensor) {
  const View view(tensor.ptr());
  const auto bytes = static_cast<std::size_t>(view.member().bytes());
  auto* const memory = view.address();
  const py::gil_scoped_release released;
  show_at(reinterpret_cast<void*>(place), memory, bytes).throw_if_failed();
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<Registration>(module, "Registration");
  module.def("registers_memory", [] { return running_session()->registers_memory(); });
  module.def("register_memory", &register_memory);
  module.def("allocate", &allocate);
  module.def("copy_past_caches", &copy_past_caches);
  module.def("show_at", &show_memory_at);
}

}  // namespace perseus::bind
