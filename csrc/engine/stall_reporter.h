// Reports what one engine waits for: to callers that ask for the missing ranks, and to the stall watch.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "control/missing_rank_query.h"
#include "control/tree.h"
#include "engine/completion.h"
#include "engine/pending_work.h"
#include "engine/point_to_point.h"
#include "engine/progress.h"
#include "transport/control_channel.h"

namespace perseus {

// Used by the driver of the engine, except for ask().
class StallReporter {
 public:
  using Clock = std::chrono::steady_clock;

  // A missing-rank query of this rank: which ranks have not submitted `name`.
  struct Query {
    std::string name;
    std::vector<int> missing;  // group ranks; valid once the completion is done
    Completion completion;
  };

  // Objects passed by reference must outlive this one.
  StallReporter(const Tree& tree, ControlChannel& control, PendingWork& pending, PointToPoint& point_to_point,
                std::shared_ptr<EngineProgress> progress);

  // Asks all ranks in one of the next cycles. Thread-safe.
  std::shared_ptr<Query> ask(std::string name);

  // Sends new queries, and completes those that are answered.
  void progress_queries(Clock::time_point now);
  void receive(int from, std::string_view bytes, Clock::time_point now) { protocol_.receive(from, bytes, now); }
  bool has_open_queries() const { return protocol_.open(); }

  // Tells the stall watch what has waited since when, while nothing is decided and nothing arrives: the rank that has
  // to decide, or to send, may be stopped.
  void report_waiting(Clock::time_point now);
  // Withdraws that report if a plan was decided, or if the expected message has arrived.
  void clear_waiting(bool decided);

 private:
  const Tree& tree_;
  ControlChannel& control_;
  PendingWork& pending_;
  PointToPoint& point_to_point_;
  std::shared_ptr<EngineProgress> progress_;
  MissingRankQuery protocol_;
  std::vector<std::shared_ptr<Query>> open_;
  Clock::time_point quiet_since_{};  // since when work is pending, or awaited_ has not come, and nothing was decided
  std::shared_ptr<const PointToPointOp> awaited_;
  bool reported_waiting_ = false;

  std::mutex mutex_;  // guards new_
  std::vector<std::shared_ptr<Query>> new_;
};

}  // namespace perseus
