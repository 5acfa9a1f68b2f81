#include <pybind11/stl.h>

#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

std::vector<Buffer> outputs(const Handle& handle) {
  std::vector<Buffer> buffers;
  for (const auto& result : handle.completion->results) {
    buffers.push_back({{result, result->data()}, result->dtype(), result->shape()});
  }
  return buffers;
}

}  // namespace

void bind_handle(py::module_& module) {
  py::class_<Buffer>(module, "Buffer", py::buffer_protocol())
      .def_property_readonly("address",
                             [](const Buffer& self) { return reinterpret_cast<std::uintptr_t>(self.memory.get()); })
      .def_property_readonly("dtype", [](const Buffer& self) { return static_cast<int>(self.dtype); })
      .def_property_readonly("shape", [](const Buffer& self) { return py::tuple(py::cast(self.shape)); })
      .def("__len__", &Buffer::bytes)
      .def_buffer([](Buffer& self) {
        return py::buffer_info(static_cast<std::uint8_t*>(self.memory.get()), static_cast<py::ssize_t>(self.bytes()));
      });

  py::class_<Handle>(module, "Handle")
      .def("done", [](const Handle& self) { return self.completion->done(); })
      .def("wait",
           [](const Handle& self) {
             if (!self.completion->done()) {
               const py::gil_scoped_release released;
               self.lane->wait(*self.completion);
             }
             self.completion->status().throw_if_failed();
           })
      .def("outputs", &outputs)
      .def("received_splits", [](const Handle& self) { return self.completion->received_splits; })
      .def("result", [](const Handle& self) { return self.completion->number; });
}

}  // namespace perseus::bind
