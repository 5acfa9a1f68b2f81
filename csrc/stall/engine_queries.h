// The missing-rank queries of one engine, over the tree of its negotiation.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/tree.h"
#include "stall/missing_rank_query.h"
#include "transport/control_channel.h"

namespace perseus {

// Used by the driver of the engine, except for ask().
class EngineQueries {
 public:
  using Clock = std::chrono::steady_clock;
  // Receives the group ranks that have not submitted the request. The driver calls it.
  using Answer = std::function<void(const RankSet& missing)>;

  // `has_submitted` returns whether this rank has submitted a request. Objects passed by reference must outlive this.
  EngineQueries(const Tree& tree, ControlChannel& control, std::function<bool(const std::string&)> has_submitted);

  // Asks all ranks in one of the next cycles. Thread-safe.
  void ask(std::string name, Answer answer);

  // Sends new queries, and completes those that are answered.
  void progress(Clock::time_point now);
  void receive(int from, std::string_view bytes, Clock::time_point now) { protocol_.receive(from, bytes, now); }
  bool any() const { return protocol_.open(); }

 private:
  using Queries = std::vector<std::pair<std::string, Answer>>;

  ControlChannel& control_;
  RankSet everybody_;
  MissingRankQuery protocol_;
  Queries open_;

  std::mutex mutex_;  // guards new_
  Queries new_;
};

}  // namespace perseus
