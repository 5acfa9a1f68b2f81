// A queue of finished work for Python threads that act on it; they sleep here without the GIL.
#include <pybind11/stl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "bind/bind.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

// Work items that this watches own it.
class Finished {
 public:
  void post(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    numbers_.push_back(number);
    posted_.notify_one();
  }

  std::optional<std::uint64_t> next(std::chrono::duration<double> limit) {
    std::unique_lock lock(mutex_);
    if (!posted_.wait_for(lock, limit, [this] { return !numbers_.empty(); })) return std::nullopt;
    const auto number = numbers_.front();
    numbers_.pop_front();
    return number;
  }

 private:
  std::mutex mutex_;  // guards numbers_
  std::condition_variable posted_;
  std::deque<std::uint64_t> numbers_;
};

}  // namespace

void bind_finished(py::module_& module) {
  py::class_<Finished, std::shared_ptr<Finished>>(module, "Finished")
      .def(py::init<>())
      .def("watch",
           [](const std::shared_ptr<Finished>& self, const PythonHandle& pending, std::uint64_t number) {
             pending.notify();
             pending.handle.completion->then([self, number] { self->post(number); });
           })
      .def("stop", [](const std::shared_ptr<Finished>& self) { self->post(0); })
      .def("next", [](const std::shared_ptr<Finished>& self, double limit_seconds) {
        const py::gil_scoped_release released;
        return self->next(std::chrono::duration<double>(limit_seconds));
      });
}

}  // namespace perseus::bind
