#include "bootstrap/store.h"

#include "base/error.h"

namespace perseus {

StoreBootstrap::StoreBootstrap(Rendezvous rendezvous) : rendezvous_(std::move(rendezvous)) {
  if (rendezvous_.size < 1 || rendezvous_.rank < 0 || rendezvous_.rank >= rendezvous_.size) {
    throw Error(ErrorKind::invalid_argument, "init(): there is no rank " + std::to_string(rendezvous_.rank) + " of " +
                                                 std::to_string(rendezvous_.size) +
                                                 " ranks; pass a rank from 0 to size - 1");
  }
}

std::vector<std::string> StoreBootstrap::allgather(std::string_view mine) {
  if (rendezvous_.size == 1) return {std::string(mine)};
  auto all = rendezvous_.exchange(mine);
  if (all.size() != static_cast<std::size_t>(rendezvous_.size)) {
    throw Error(ErrorKind::transport, "init(): the store returned the bytes of " + std::to_string(all.size()) + " of " +
                                          std::to_string(rendezvous_.size) +
                                          " ranks; check that no other program writes to this store");
  }
  return all;
}

}  // namespace perseus
