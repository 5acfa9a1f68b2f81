// Maps agreed requests to small numbers that are the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "control/request.h"

namespace perseus {

// The requests that the ranks of a group have agreed on before, by id. The root gives an id to a name when the name is
// agreed for the second time, so that names used once (for example with a counter) take no place. In a full cache, the
// id of a name that has not been used for long goes to the new name; see Negotiator::give_id for reports in transit.
class ResponseCache {
 public:
  explicit ResponseCache(std::int64_t capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  // Returns the id of exactly this request. Fast in the order of the ids, which is that of a training step.
  std::optional<std::uint32_t> find(const Request& request);

  // Returns the id of a name, whatever its request is.
  std::optional<std::uint32_t> id_of(const std::string& name) const;

  // Throws Error(transport) if the id was never given.
  const std::shared_ptr<const Request>& shared(std::uint32_t id) const;
  const Request& at(std::uint32_t id) const { return *shared(id); }

  // Returns the id to give to a request that has just been agreed, if any. Called at the root only.
  std::optional<std::uint32_t> choose_id(const Request& request);

  // Returns the request of another name that has the id; null if there is none.
  std::shared_ptr<const Request> former(std::uint32_t id, const Request& request) const;

  // Stores a request. Every rank calls it in the order of the plan.
  void put(std::uint32_t id, std::shared_ptr<const Request> request);

  // Records the texts with which this rank submits the request of an id, which are not compared between ranks. Returns
  // true if they are new.
  bool describe(std::uint32_t id, const std::string& member_names);

  // Records that the id was used. Called at the root only.
  void mark_used(std::uint32_t id) { used_[id] = true; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::size_t capacity_;
  std::vector<std::shared_ptr<const Request>> requests_;  // by id
  std::uint32_t expected_ = 0;                            // the id after the last one found
  std::vector<bool> used_;                                // by id: since choose_id() looked at it last
  std::uint32_t next_ = 0;                                // the id that choose_id() looks at next, in a full cache
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::unordered_set<std::string> seen_once_;
};

}  // namespace perseus
