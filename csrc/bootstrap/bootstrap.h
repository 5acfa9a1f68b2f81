// Who am I, and a few bytes exchanged with all ranks: what is needed before any transport exists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perseus {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  // "single", "local", "mpi", "store": named in the log and in check-build.
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Collective over all ranks: every rank's bytes, by rank. Throws Error(peer_lost | timed_out | transport).
  virtual std::vector<std::string> allgather(std::string_view mine) = 0;

  // In a forked child: lets go of what would keep a connection open after the parent's end.
  virtual void close_after_fork() {}
};

}  // namespace perseus
