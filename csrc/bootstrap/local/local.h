// The bootstrap for ranks of one host that perseusrun has started. They connect over a Unix socket without MPI.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local/local_rendezvous.h"

namespace perseus {

struct LocalJob {
  int rank = 0;
  int size = 1;
  std::string address;              // random, the same on all ranks
  int generation = 0;               // counts the calls of init() with this selection, the same on all ranks
  std::vector<int> selection = {};  // ranks that take part, in this order; empty: all
  std::chrono::milliseconds start_timeout{60'000};
};

class LocalBootstrap final : public Bootstrap {
 public:
  // Collective. Throws Error(timed_out) that names the ranks that did not connect.
  explicit LocalBootstrap(const LocalJob& job);

  std::string_view name() const override { return "local"; }
  int rank() const override { return rendezvous_->rank(); }
  int size() const override { return rendezvous_->size(); }
  std::vector<std::string> allgather(std::string_view mine) override { return rendezvous_->allgather(mine); }
  std::shared_ptr<LocalRendezvous> rendezvous() override { return rendezvous_; }
  void close_after_fork() override { rendezvous_->close_after_fork(); }

 private:
  std::shared_ptr<LocalRendezvous> rendezvous_;
};

}  // namespace perseus
