#include <fcntl.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory/write_report.h"
#include "bind/bind.h"
#include "bootstrap/local/local_rendezvous.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

using Range = std::tuple<std::uintptr_t, std::size_t, std::string>;

NamedRange named(const Range& range) { return {std::get<0>(range), std::get<1>(range), std::get<2>(range)}; }

// Python's finalizer releases it before the memory is unmapped.
struct WriteReport {
  std::shared_ptr<void> registration;
};

std::unique_ptr<WriteReport> report(const Range& whole, const std::vector<Range>& tensors, std::string before,
                                    std::string after) {
  ReadOnlyMemory memory{named(whole), {}, std::move(before), std::move(after)};
  for (const auto& tensor : tensors) memory.tensors.push_back(named(tensor));
  auto registration = report_writes(std::move(memory));
  return registration ? std::make_unique<WriteReport>(std::move(registration)) : nullptr;
}

// Returns a descriptor of the first rank's file, which the caller closes.
int file_of_first(const std::string& address, int rank, int size, int fd, double limit_seconds) {
  const py::gil_scoped_release released;
  const auto limit =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(limit_seconds));
  LocalRendezvous rendezvous(address, rank, size, limit);
  const auto all = rendezvous.exchange_fds(fd);
  const int first = fcntl(all.front().get(), F_DUPFD_CLOEXEC, 0);
  if (first < 0) throw Error(ErrorKind::transport, "cannot duplicate a descriptor: " + system_error_text(errno));
  return first;
}

}  // namespace

void bind_sharing(py::module_& module) {
  const py::class_<WriteReport> type(module, "WriteReport");
  module.def("report_writes", &report);
  module.def("new_rendezvous_address", &random_rendezvous_address);
  module.def("file_of_first", &file_of_first);
}

}  // namespace perseus::bind
