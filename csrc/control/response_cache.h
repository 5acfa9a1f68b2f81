// What was agreed before, under small numbers that are the same on all ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "control/request.h"

namespace perseus {

// The root gives an id to a name when it is agreed for the second time, so that names used once (a counter in them)
// take no place. An id is never given to another name: a report that is still under way can not be misread.
class ResponseCache {
 public:
  explicit ResponseCache(std::int64_t capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  // The id under which exactly this request was agreed.
  std::optional<std::uint32_t> find(const Request& request) const;

  // The id that a name has, whatever was agreed under it.
  std::optional<std::uint32_t> id_of(const std::string& name) const;

  // Throws Error(transport) where the id was never given.
  const Request& at(std::uint32_t id) const;

  // Root only: the id to give to a request that has just been agreed, if any.
  std::optional<std::uint32_t> choose_id(const Request& request);

  // On every rank, in the order of the plan.
  void put(std::uint32_t id, const Request& request);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::size_t capacity_;
  std::deque<Request> requests_;  // by id; a deque keeps references valid
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::unordered_set<std::string> seen_once_;
};

}  // namespace perseus
