#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "bind/bind.h"
#include "capi/handles.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// Work that was dropped before it was complete, because an exception interrupted the wait or the caller dropped the
// handle. The engine still writes into its tensors. Guarded by the GIL; never destroyed.
std::vector<PythonHandle>& dropped() {
  static auto* the_one = new std::vector<PythonHandle>;
  return *the_one;
}

// The engine, a device or, after a failure, a peer may read or write the tensors.
bool in_use(const Handle& handle) {
  const auto& completion = *handle.completion;
  return !completion.done() || completion.memory_is_lent ||
         (completion.on_device && perseus::in_use(*completion.on_device));
}

// Releases the tensors of dropped work that is complete.
void release_complete() {
  // Releasing a tensor may run any code, including this function, so it must happen after the list is consistent again.
  std::vector<PythonHandle> complete;
  for (auto& pending : std::exchange(dropped(), {})) {
    auto& place = in_use(pending.handle) ? dropped() : complete;
    place.push_back(std::move(pending));
  }
}

// Has Python's main thread call release_complete() soon. Any thread may call this, without the GIL. Python queues few
// such calls, so at most one is queued; if there is no room, the next work that is dropped releases the tensors.
void release_soon() {
  static std::atomic<bool> queued{false};
  if (queued.exchange(true)) return;
  const auto call = [](void*) {
    queued = false;
    release_complete();
    return 0;
  };
  if (Py_AddPendingCall(call, nullptr) != 0) queued = false;
}

void drop(Handle handle, py::object tensors) {
  release_complete();
  const auto completion = handle.completion;
  dropped().emplace_back(std::move(handle), std::move(tensors));
  completion->then(&release_soon);
}

// Waits for the work for at most this time, and returns whether it is complete. Throws its Error.
bool comes_within(const PythonHandle& pending, double limit_seconds) {
  const auto& completion = *pending.handle.completion;
  if (!completion.done()) {
    pending.wait(time_in(std::chrono::duration<double>(limit_seconds)));
  }
  if (!completion.done()) return false;
  completion.status().throw_if_failed();
  return true;
}

std::vector<Buffer> outputs(const PythonHandle& pending) {
  std::vector<Buffer> buffers;
  for (const auto& result : pending.handle.completion->results) {
    buffers.push_back({{result, result->data()}, result->dtype(), result->shape(), result->device()});
  }
  return buffers;
}

}  // namespace

void PythonHandle::wait(ProcessSetEngine::Clock::time_point until) const {
  const bool notified = !std::exchange(quiet, false);
  const py::gil_scoped_release released;
  handle.wait(notified, until);
}

void PythonHandle::poll() const {
  notify();
  const py::gil_scoped_release released;
  handle.poll();
}

PythonHandle::~PythonHandle() {
  if (handle.completion && !handle.completion->done()) notify();
  if (handle.completion && tensors && !tensors.is_none() && in_use(handle)) {
    drop(std::move(handle), std::move(tensors));
  }
}

void bind_handle(py::module_& module) {
  py::class_<Buffer>(module, "Buffer", py::buffer_protocol())
      .def_property_readonly("address",
                             [](const Buffer& self) { return reinterpret_cast<std::uintptr_t>(self.memory.get()); })
      .def_property_readonly("dtype", [](const Buffer& self) { return static_cast<int>(self.dtype); })
      .def_property_readonly("shape", [](const Buffer& self) { return py::tuple(py::cast(self.shape)); })
      .def_readonly("device", &Buffer::device)
      .def("__len__", &Buffer::bytes)
      .def_buffer([](Buffer& self) {
        if (self.device >= 0) throw py::buffer_error("the memory is an accelerator's");
        return py::buffer_info(static_cast<std::uint8_t*>(self.memory.get()), static_cast<py::ssize_t>(self.bytes()));
      });

  const auto type = make_handle_type();
  module.attr("Handle") = type;
  const auto method = [&type](const char* name, auto function) {
    type.attr(name) = py::cpp_function(std::move(function), py::name(name), py::is_method(type));
  };
  method("wait_for", [](const PythonHandle& self, double limit_seconds) {
    if (!comes_within(self, limit_seconds)) return false;
    arrive(self.handle);
    return true;
  });
  method("wait_alone", [](const PythonHandle& self, double limit_seconds) {
    if (!comes_within(self, limit_seconds)) return false;
    arrive_alone(self.handle);
    return true;
  });
  method("outputs", &outputs);
  // For complete work: returns true if an accelerator is done with it. Operations that the current stream was given
  // since wait() count as a part of the work.
  method("is_over", [](const PythonHandle& self) {
    const auto& place = self.handle.completion->on_device;
    return !place || is_over(*place);
  });
  method("extend", [](const PythonHandle& self) {
    const auto& place = self.handle.completion->on_device;
    if (place) extend(*place, current_stream(place->device->number()));
  });
  method("extend_alone", [](const PythonHandle& self) {
    const auto& place = self.handle.completion->on_device;
    if (place) extend_alone(*place, current_stream(place->device->number()));
  });
  method("received_splits", [](const PythonHandle& self) { return self.handle.completion->received_splits; });
  // Returns a handle of a request that native code has started; `address` is what perseus.h's start() has stored.
  module.def("handle_at", [](std::uintptr_t address, py::object tensors) {
    auto& native = *reinterpret_cast<NativeHandle*>(address);
    native.notify();
    return PythonHandle{native.handle, std::move(tensors)};
  });
  method("number", [](const PythonHandle& self) { return self.handle.completion->number; });
}

}  // namespace perseus::bind
