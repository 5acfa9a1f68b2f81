// Reports what one engine waits for: to callers that ask which ranks are missing, and to the stall watch.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
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

// Used by whoever drives the engine, except for ask().
class StallReporter {
 public:
  using Clock = std::chrono::steady_clock;

  // A question of this rank: which ranks have not submitted `name`.
  struct Question {
    std::string name;
    std::vector<int> missing;  // group ranks; valid once the completion is done
    Completion completion;
  };

  // Everything that is referred to outlives this.
  StallReporter(const Tree& tree, ControlChannel& control, PendingWork& pending, PointToPoint& point_to_point,
                std::shared_ptr<EngineProgress> progress);

  // Asks all ranks in one of the next cycles. Any thread.
  std::shared_ptr<Question> ask(std::string name);

  // Sends questions, and completes those that are answered.
  void progress_questions(Clock::time_point now);
  void receive(std::string_view bytes, Clock::time_point now) { query_.hear(bytes, now); }
  bool has_open_questions() const { return query_.open(); }

  // Tells the stall watch what has waited since when, while nothing is decided and nothing arrives: the rank that has
  // to decide, or to send, may be stopped.
  void report_waiting(Clock::time_point now);
  // Takes that back if a plan was decided, or if the message that was waited for has come.
  void clear_waiting(bool decided);

 private:
  const Tree& tree_;
  ControlChannel& control_;
  PendingWork& pending_;
  PointToPoint& point_to_point_;
  std::shared_ptr<EngineProgress> progress_;
  MissingRankQuery query_;
  std::map<std::uint64_t, std::shared_ptr<Question>> open_;  // by number
  std::uint64_t next_question_ = 0;
  Clock::time_point quiet_since_{};  // since when work is pending, or awaited_ has not come, and nothing was decided
  std::shared_ptr<const PointToPointOp> awaited_;
  bool reported_waiting_ = false;

  std::mutex mutex_;  // guards asked_
  std::vector<std::shared_ptr<Question>> asked_;
};

}  // namespace perseus
