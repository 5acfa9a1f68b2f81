// Writes the phases of each request to the timeline, under the names that Horovod gives them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/negotiator.h"
#include "device/host/kernels.h"
#include "engine/execute/execute.h"
#include "engine/work_item.h"
#include "trace/timeline.h"

namespace perseus {

// NEGOTIATE_ALLREDUCE lasts from the submission to the decision, and ALLREDUCE from there to the end. ALLREDUCE
// contains QUEUE and SHM_ALLREDUCE, which contains the copies. WorkItem::open_phases counts open phases, so that every
// end, also of a failure, closes them.
class EngineTracing {
 public:
  using Clock = TraceEvent::Clock;

  // `timeline` may be null. `suffix` is appended to tensor names if the engine is not the world's.
  EngineTracing(Timeline* timeline, std::string suffix) : timeline_(timeline), suffix_(std::move(suffix)) {}

  bool on() const { return timeline_ != nullptr && timeline_->on(); }

  // Call the following only if on() returned true, and finished() only for work with open phases.

  // Records the submission, before the work item is handed over. Returns the name of its track.
  std::string submitted(WorkItem& work);
  // Records that the submission was refused.
  void refused(std::string track);
  void arrived(const std::vector<Negotiator::Arrival>& arrivals);
  void cycle(Clock::time_point now);
  // `sequence` is the place of the first task in the engine's plans, which is the same on all ranks.
  void decided(const std::vector<BatchItem>& tasks, std::int64_t sequence);
  void begins(const std::vector<BatchItem>& tasks, std::string_view transport);
  void ends(const std::vector<BatchItem>& tasks, Clock::time_point began, const host::CopyTimes& copies);
  void finished(WorkItem& work, const Status& status);

 private:
  friend class WaitTracing;
  TraceEvent event(TraceEvent::Kind kind, Clock::time_point at, const Request& request) const;

  Timeline* timeline_;
  std::string suffix_;
};

// Marks the time for which a caller is blocked.
class WaitTracing {
 public:
  explicit WaitTracing(const EngineTracing& tracing) : timeline_(tracing.on() ? tracing.timeline_ : nullptr) {
    if (timeline_ != nullptr) mark(TraceEvent::Kind::begin);
  }
  ~WaitTracing() {
    if (timeline_ != nullptr) mark(TraceEvent::Kind::end);
  }
  WaitTracing(const WaitTracing&) = delete;
  WaitTracing& operator=(const WaitTracing&) = delete;

 private:
  void mark(TraceEvent::Kind kind) const;

  Timeline* timeline_;
};

}  // namespace perseus
