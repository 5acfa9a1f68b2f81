// Ranks that meet through somebody else's key-value store: torchrun's, or one that the user has made.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace perseus {

// Who this rank is, and how it reaches the others before any transport exists.
struct Meeting {
  int rank = 0;
  int size = 1;
  // Collective over the ranks: every rank's bytes, by rank. Throws what the store throws.
  std::function<std::vector<std::string>(std::string_view mine)> exchange;
  int called_off = -1;  // a descriptor that becomes readable when a rank will not come; -1: nobody says so
};

class StoreBootstrap final : public Bootstrap {
 public:
  // Throws Error(invalid_argument).
  explicit StoreBootstrap(Meeting meeting);

  std::string_view name() const override { return "store"; }
  int rank() const override { return meeting_.rank; }
  int size() const override { return meeting_.size; }
  std::vector<std::string> allgather(std::string_view mine) override;

 private:
  Meeting meeting_;
};

}  // namespace perseus
