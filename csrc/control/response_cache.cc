#include "control/response_cache.h"

#include "base/error.h"

namespace perseus {

std::optional<std::uint32_t> ResponseCache::find(const Request& request) const {
  const auto found = ids_.find(request.name);
  if (found == ids_.end() || !requests_[found->second].agrees_with(request)) return std::nullopt;
  return found->second;
}

std::optional<std::uint32_t> ResponseCache::id_of(const std::string& name) const {
  const auto found = ids_.find(name);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const Request& ResponseCache::at(std::uint32_t id) const {
  if (id >= requests_.size()) {
    throw Error(ErrorKind::transport, "another rank refers to an agreement that was never made (id " +
                                          std::to_string(id) + "); do all ranks run the same version?");
  }
  return requests_[id];
}

std::optional<std::uint32_t> ResponseCache::choose_id(const Request& request) {
  if (const auto found = ids_.find(request.name); found != ids_.end()) return found->second;
  if (requests_.size() >= capacity_) return std::nullopt;
  constexpr std::size_t kMostSeenOnce = 1U << 16;
  if (seen_once_.size() >= kMostSeenOnce) seen_once_.clear();
  if (seen_once_.insert(request.name).second) return std::nullopt;
  seen_once_.erase(request.name);
  return static_cast<std::uint32_t>(requests_.size());
}

void ResponseCache::put(std::uint32_t id, const Request& request) {
  if (id == requests_.size()) requests_.emplace_back();
  if (id >= requests_.size()) {
    throw Error(ErrorKind::transport, "ids of agreements came out of order; do all ranks run the same version?");
  }
  requests_[id] = request;
  ids_[request.name] = id;
}

}  // namespace perseus
