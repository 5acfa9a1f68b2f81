#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bind/work_items.h"
#include "device/host/kernels.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// Releasing it waits for a device that uses the memory.
struct Registration {
  std::shared_ptr<void> memory;

  explicit Registration(std::shared_ptr<void> held) : memory(std::move(held)) {}
  // This object shows that pybind11 has the interpreter's state, for want of which it would throw.
  // NOLINTNEXTLINE(bugprone-exception-escape)
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
  auto* const address = view.address();
  const auto bytes = static_cast<std::size_t>(view.member().bytes());
  const py::gil_scoped_release released;
  auto memory = running_session()->register_memory(process_set, address, bytes);
  if (!memory) return nullptr;
  return std::make_unique<Registration>(std::move(memory));
}

Buffer allocate(const std::vector<std::int64_t>& shape, int dtype) {
  Buffer buffer{nullptr, dtype_of(dtype), shape};
  for (const auto extent : shape) {
    if (extent < 0) throw Error(ErrorKind::invalid_argument, "a dimension is negative");
  }
  const py::gil_scoped_release released;  // large memory takes seconds
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

std::unique_ptr<Registration> register_shared_memory(std::uintptr_t address, std::size_t bytes) {
  const py::gil_scoped_release released;
  auto memory = running_session()->register_shared_memory(reinterpret_cast<const void*>(address), bytes);
  return memory ? std::make_unique<Registration>(std::move(memory)) : nullptr;
}

}  // namespace

void bind_memory(py::module_& module) {
  const py::class_<Registration> registration(module, "Registration");
  module.def("registers_memory", [] { return running_session()->registers_memory(); });
  module.def("register_memory", &register_memory);
  module.def("register_shared_memory", &register_shared_memory);
  module.def("allocate", &allocate);
  module.def("copy_past_caches", &copy_past_caches);
  // The benchmarks' reference, which is not available from Python: a copy with non-temporal stores.
  module.def(
      "copy",
      [](std::uintptr_t to, std::uintptr_t from, std::size_t bytes, bool streaming) {
        py::gil_scoped_release release;
        host::copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes,
                   streaming ? host::Store::streaming : host::Store::cached);
      },
      py::arg("to"), py::arg("from_"), py::arg("bytes"), py::arg("streaming"));
}

}  // namespace perseus::bind
