// The bootstrap over a key-value store, such as torchrun's or one that the user has made.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace perseus {

// The rank, and its means to exchange bytes with the others before any transport exists.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  // Gathers the bytes of every rank, by rank. Collective over the ranks. Throws what the store throws.
  std::function<std::vector<std::string>(std::string_view mine)> exchange;
  int cancel_fd = -1;  // a descriptor that becomes readable if a rank will never start; −1: none
  int lost = -1;       // an eventfd to which a session adds 1 if a rank is lost, so that `exchange` ends; −1: none
};

class StoreBootstrap final : public Bootstrap {
 public:
  // Throws Error(invalid_argument).
  explicit StoreBootstrap(Rendezvous rendezvous);

  std::string_view name() const override { return "store"; }
  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.size; }
  std::vector<std::string> allgather(std::string_view mine) override;

 private:
  Rendezvous rendezvous_;
};

}  // namespace perseus
