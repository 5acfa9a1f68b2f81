// The bootstrap over a key-value store, such as torchrun's or one that the user has made.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
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
  explicit StoreBootstrap(Rendezvous rendezvous) : rendezvous_(std::move(rendezvous)) {
    if (rendezvous_.size < 1 || rendezvous_.rank < 0 || rendezvous_.rank >= rendezvous_.size) {
      throw Error(ErrorKind::invalid_argument, "init(): there is no rank " + std::to_string(rendezvous_.rank) + " of " +
                                                   std::to_string(rendezvous_.size) +
                                                   " ranks; pass a rank from 0 to size - 1");
    }
  }

  std::string_view name() const override { return "store"; }
  int rank() const override { return rendezvous_.rank; }
  int size() const override { return rendezvous_.size; }
  std::vector<std::string> allgather(std::string_view mine) override {
    if (rendezvous_.size == 1) return {std::string(mine)};
    auto all = rendezvous_.exchange(mine);
    if (all.size() != static_cast<std::size_t>(rendezvous_.size)) {
      throw Error(ErrorKind::transport, "init(): the store returned the bytes of " + std::to_string(all.size()) +
                                            " of " + std::to_string(rendezvous_.size) +
                                            " ranks; check that no other program writes to this store");
    }
    return all;
  }

 private:
  Rendezvous rendezvous_;
};

}  // namespace perseus
