#include "bind/bind.h"
#include "device/host/kernels.h"

namespace perseus::bind {

void bind_measure(pybind11::module_& module) {
  namespace py = pybind11;
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
