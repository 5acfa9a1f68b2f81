// Ranks of one host started by perseusrun: they find each other over a private Unix socket, no MPI involved.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local_star.h"

namespace perseus {

struct LocalJob {
  int rank = 0;
  int size = 1;
  std::string address;              // random, the same on all ranks
  int generation = 0;               // which init of this process with this selection it is, counted alike on all ranks
  std::vector<int> selection = {};  // these of the ranks only, in this order; empty: all
  std::chrono::milliseconds start_timeout{60'000};
};

class LocalBootstrap final : public Bootstrap {
 public:
  // Collective. Throws Error(timed_out) naming the ranks that did not come.
  explicit LocalBootstrap(const LocalJob& job);

  std::string_view name() const override { return "local"; }
  int rank() const override { return star_.rank(); }
  int size() const override { return star_.size(); }
  std::vector<std::string> allgather(std::string_view mine) override { return star_.allgather(mine); }
  void close_after_fork() override { star_.close_after_fork(); }

 private:
  LocalStar star_;
};

}  // namespace perseus
