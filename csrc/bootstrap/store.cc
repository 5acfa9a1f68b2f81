#include "bootstrap/store.h"

#include "base/error.h"

namespace perseus {

StoreBootstrap::StoreBootstrap(Meeting meeting) : meeting_(std::move(meeting)) {
  if (meeting_.size < 1 || meeting_.rank < 0 || meeting_.rank >= meeting_.size) {
    throw Error(ErrorKind::invalid_argument, "there is no rank " + std::to_string(meeting_.rank) + " of " +
                                                 std::to_string(meeting_.size) + " ranks");
  }
}

std::vector<std::string> StoreBootstrap::allgather(std::string_view mine) {
  if (meeting_.size == 1) return {std::string(mine)};
  auto all = meeting_.exchange(mine);
  if (all.size() != static_cast<std::size_t>(meeting_.size)) {
    throw Error(ErrorKind::transport, "the store gave the bytes of " + std::to_string(all.size()) + " of " +
                                          std::to_string(meeting_.size) + " ranks");
  }
  return all;
}

}  // namespace perseus
