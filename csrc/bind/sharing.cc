#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "base/error.h"
#include "bind/bind.h"
#include "bootstrap/local/local_rendezvous.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

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
  module.def("new_rendezvous_address", &random_rendezvous_address);
  module.def("file_of_first", &file_of_first);
}

}  // namespace perseus::bind
