#include <cstdint>

#include "bind/bind.h"
#include "device/device.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// The adapter's function(device: int) -> int, which returns the current stream. Never destroyed, because the
// interpreter may be gone by then. Guarded by the GIL.
py::object& source() {
  static auto* the_one = new py::object;
  return *the_one;
}

}  // namespace

Stream current_stream(int device) {
  if (!source()) throw Error(ErrorKind::unavailable, "no adapter has registered the streams of this framework");
  return source()(device).cast<std::uintptr_t>();
}

void arrive(const Handle& handle) {
  const auto& place = handle.completion->on_device;
  if (place) arrive(*place, current_stream(place->device->number()));
}

void arrive_alone(const Handle& handle) {
  const auto& place = handle.completion->on_device;
  if (place) arrive_alone(*place, current_stream(place->device->number()));
}

void bind_streams(py::module_& module) {
  module.def("has_device_driver", &has_driver);
  module.def("set_stream_source", [](py::function function) { source() = std::move(function); });
}

}  // namespace perseus::bind
