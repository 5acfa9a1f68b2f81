#include "control/response_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perseus {

std::optional<std::uint32_t> ResponseCache::find(const Request& request) {
  const bool is_expected = expected_ < requests_.size() && requests_[expected_]->name == request.name;
  const auto id = is_expected ? std::optional(expected_) : id_of(request.name);
  if (!id || !requests_[*id]->agrees_with(request)) return std::nullopt;
  expected_ = (*id + 1) % static_cast<std::uint32_t>(requests_.size());
  return id;
}

std::optional<std::uint32_t> ResponseCache::id_of(const std::string& name) const {
  const auto found = ids_.find(name);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::shared_ptr<const Request>& ResponseCache::shared(std::uint32_t id) const {
  if (id >= requests_.size()) {
    throw Error(ErrorKind::transport,
                "negotiation: another rank refers to request id " + std::to_string(id) +
                    ", which this rank's response cache does not have; check that all ranks run the same version of "
                    "perseus_like and that PERSEUS_CACHE_CAPACITY is the same on all");
  }
  return requests_[id];
}

std::optional<std::uint32_t> ResponseCache::choose_id(const Request& request) {
  if (const auto found = ids_.find(request.name); found != ids_.end()) return found->second;
  if (capacity_ == 0) return std::nullopt;
  constexpr std::size_t kMostSeenOnce = 1U << 16;
  if (seen_once_.size() >= kMostSeenOnce) seen_once_.clear();
  if (seen_once_.insert(request.name).second) return std::nullopt;
  if (requests_.size() < capacity_) {
    seen_once_.erase(request.name);
    return static_cast<std::uint32_t>(requests_.size());
  }
  // Each agreement looks at one id, and spares it if it was used since the last look. So a program that uses more names
  // than there is room for, each of them again and again, does not lose the ids of all of them.
  const auto id = std::exchange(next_, (next_ + 1) % static_cast<std::uint32_t>(requests_.size()));
  if (used_[id]) {
    used_[id] = false;
    return std::nullopt;
  }
  seen_once_.erase(request.name);
  return id;
}

std::shared_ptr<const Request> ResponseCache::former(std::uint32_t id, const Request& request) const {
  if (id >= requests_.size() || requests_[id]->name == request.name) return nullptr;
  return requests_[id];
}

void ResponseCache::put(std::uint32_t id, std::shared_ptr<const Request> request) {
  if (id > requests_.size()) {
    throw Error(ErrorKind::transport, "negotiation: a plan gives request id " + std::to_string(id) +
                                          ", expected at most " + std::to_string(requests_.size()) +
                                          "; check that all ranks run the same version of perseus_like");
  }
  if (const auto before = former(id, *request)) ids_.erase(before->name);
  requests_.resize(std::max<std::size_t>(requests_.size(), id + 1));
  used_.resize(requests_.size());
  used_[id] = true;
  ids_[request->name] = id;
  requests_[id] = std::move(request);
}

bool ResponseCache::describe(std::uint32_t id, const std::string& member_names) {
  auto& known = requests_[id];
  if (known->member_names == member_names) return false;
  auto changed = std::make_shared<Request>(*known);
  changed->member_names = member_names;
  known = std::move(changed);
  return true;
}

}  // namespace perseus
