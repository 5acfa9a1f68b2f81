// Gives a process its rank and exchanges a few bytes among all ranks before any transport exists.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace perseus {

class LocalRendezvous;

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  // Returns "single", "local", "mpi" or "store", for the log and check-build.
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Gathers the bytes of every rank, by rank. Collective over all ranks. Throws Error(peer_lost | timed_out |
  // transport).
  virtual std::vector<std::string> allgather(std::string_view mine) = 0;

  // Returns the connections of a job whose ranks have met on one host, or null. Others may use them between two calls
  // of allgather(). Once they are a watch, allgather() is over.
  virtual std::shared_ptr<LocalRendezvous> rendezvous() { return nullptr; }

  // Call in a forked child: closes what would keep a connection open after the parent's end.
  virtual void close_after_fork() {}
};

// The bootstrap of a job with one rank.
class SingleBootstrap final : public Bootstrap {
 public:
  std::string_view name() const override { return "single"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> allgather(std::string_view mine) override { return {std::string(mine)}; }
};

}  // namespace perseus
