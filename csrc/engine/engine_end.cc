// The end of a ProcessSetEngine: after a failure, or when its rank leaves.
#include <exception>
#include <thread>

#include "base/log.h"
#include "base/wait/blocking.h"
#include "engine/process_set_engine.h"

namespace perseus {

// Ends the engine after a failure of its transport, or an exception. `on_host`: the end of a peer may have caused it.
void ProcessSetEngine::fail(const Status& why, bool on_host) {
  link_.transport->abort(why);
  const auto status = on_host ? cause_of(why) : why;
  if (status.kind() != ErrorKind::peer_lost) failed_itself_.store(true, std::memory_order_release);
  break_off(status);
  report_failure(status);
}

// Returns the loss of a peer if that caused the failure. A transport may notice a peer's end before the liveness
// connections do.
Status ProcessSetEngine::cause_of(const Status& failure) const {
  if (failure.kind() != ErrorKind::transport) return failure;
  before_blocking();
  const auto until = Clock::now() + std::chrono::seconds(1);
  while (!liveness_.any_lost() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return liveness_.any_lost() ? liveness_.status() : failure;
}

// Reports this rank as lost. Other ranks may not notice its failure: they wait for this rank's part of a collective,
// over a transport that shares no memory with this rank, or on their devices.
void ProcessSetEngine::report_failure(const Status& why) {
  if (why.kind() == ErrorKind::peer_lost) return;
  const int rank = tree_.world_ranks[static_cast<std::size_t>(tree_.rank)];
  liveness_.report_lost({.rank = rank, .text = "failed: " + why.text(), .gave_up = true});
}

void ProcessSetEngine::break_off(const Status& reason, bool all) {
  if (broken_.ok()) broken_ = reason;
  // Work that is queued on a device would wait there without end. If a rank left in order, such work completes.
  if (liveness_.any_lost() || failed_itself()) executor_.abort(reason);
  if (all) {
    receive_last_messages();
    point_to_point_.fail(reason);
  }
  pending_.close(broken_);
  finish_join(broken_);
  if (!closed_.done()) closed_.finish({});
}

// Receives what other ranks sent before they left. Receives that are posted later still get their messages. A request
// that failed has the error that all ranks get, and not the loss of these ranks.
void ProcessSetEngine::receive_last_messages() {
  try {
    ControlMessage message;
    while (link_.control->receive(message)) {
      if (PointToPoint::is_point_to_point(message.bytes)) {
        point_to_point_.receive(message.from, std::move(message.bytes));
      } else if (!MissingRankQuery::is_of(message.bytes)) {
        negotiator_.receive(message.from, message.bytes, Clock::now());
      }
    }
    for (auto plan = negotiator_.take_decisions(); !plan.empty(); plan = negotiator_.take_decisions()) {
      for (const auto& decision : plan) {
        if (decision.kind == Decision::Kind::fail) {
          pending_.finish(decision.name(), {decision.error, decision.text});
        }
      }
    }
  } catch (const std::exception& error) {
    log(LogLevel::debug, std::string("messages that came at the end are lost: ") + error.what());
  }
}

void ProcessSetEngine::send_last_messages(Clock::time_point deadline) {
  constexpr std::chrono::microseconds kPatience{200};
  auto& doorbell = link_.control->doorbell();
  for (auto seen = doorbell.notifications(); point_to_point_.make_progress() || point_to_point_.has_outgoing();
       seen = doorbell.notifications()) {
    if (liveness_.any_lost() || Clock::now() >= deadline) return;
    receive(Clock::now());
    if (point_to_point_.has_outgoing()) doorbell.wait(seen, Sleeper::caller, kPatience);
  }
}

// Announces that this rank leaves, in case the engine's thread has not done so yet.
void ProcessSetEngine::send_shutdown_messages() {
  if (!broken_.ok() || liveness_.any_lost()) return;
  for (auto& message : negotiator_.shutdown_messages()) link_.control->send(message.to, std::move(message.bytes));
}

}  // namespace perseus
