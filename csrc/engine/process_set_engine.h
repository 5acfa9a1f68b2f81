// The engine of one process set: what its ranks submit, how they agree on it, and who executes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/watch/liveness.h"
#include "control/negotiator.h"
#include "engine/driver.h"
#include "engine/engine_options.h"
#include "engine/execute/plan_executor.h"
#include "engine/pending_work.h"
#include "engine/point_to_point.h"
#include "engine/session/tuning.h"
#include "engine/tracing.h"
#include "engine/work_item.h"
#include "stall/engine_queries.h"
#include "transport/fabric.h"

namespace perseus {

// The time at which the driver's thread is woken for new work. The caller drives the engine itself as soon as it waits.
enum class Notify : std::uint8_t {
  now,
  never,  // the caller waits at once, or calls wake()
};

// Returns the time at which `limit` has passed. A limit of years means never: later times would not fit into a
// time_point.
inline Negotiator::Clock::time_point time_in(std::chrono::duration<double> limit) {
  using Clock = Negotiator::Clock;
  if (!(limit < std::chrono::years(10))) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
}

using Prepare = std::function<void(const std::shared_ptr<Completion>&)>;

// Engines are independent of one another: a thread that blocks in one of them serves no other one meanwhile, so
// overlapping process sets cannot block each other.
//
// A cycle takes what was submitted, receives messages, sends reports up the tree and plans down, and executes plans.
// The driver decides which thread runs a cycle and when; the plan executor moves data; missing-rank queries find ranks
// that have not submitted a request. This class connects them, and decides what happens when something fails.
class ProcessSetEngine final : private CycleTarget {
 public:
  ProcessSetEngine(Tree tree, Link link, EngineOptions options, Liveness& liveness, SetVerbs set_verbs);
  ~ProcessSetEngine() override;
  ProcessSetEngine(const ProcessSetEngine&) = delete;
  ProcessSetEngine& operator=(const ProcessSetEngine&) = delete;

  int rank() const { return tree_.rank; }
  int size() const { return tree_.size(); }
  const std::vector<int>& world_ranks() const { return tree_.world_ranks; }
  Transport& transport() { return *link_.transport; }
  // Sets the wire dtype of a request that names none, as the settings ask for.
  void choose_wire_dtype(Request& request) const;

  // Throws Error(invalid_argument) for a name in flight, or the reason why the engine takes no more work.
  void submit(std::shared_ptr<WorkItem> work, Notify notify = Notify::now);

  // Makes the request of this name, which is in flight on this rank, fail on all ranks unless they have agreed on it.
  // `call` follows "rank 0 calls" in the error text.
  void contradict(std::string_view name, const std::string& call);

  // Sends a message to one rank of the set, or receives one. Throws Error, as submit().
  std::shared_ptr<Completion> post(std::shared_ptr<PointToPointOp> operation);

  // Declares that this rank has no more work until all ranks have joined: until then, submit() throws. `prepare` sees
  // the completion before it can be done.
  std::shared_ptr<Completion> join(const Prepare& prepare = {});

  using Clock = Negotiator::Clock;

  // Runs a cycle on the caller's thread, unless another thread drives: for callers that ask again and again whether
  // their work is done. Never throws.
  void poll() { driver_.poll(); }

  // Blocks until the completion is done, or until `until`, and drives the engine meanwhile. Never throws; the outcome
  // is in the completion. `notified`: as its work was submitted.
  void wait(Completion& completion, bool notified = true, Clock::time_point until = Clock::time_point::max());

  // Asks all ranks, and returns the job's ranks that have not submitted `name`, which this rank waits for. Returns
  // nothing if they have not answered by `until`, as while data move.
  std::optional<std::vector<int>> missing(const std::string& name, Clock::time_point until);

  // Blocks until everything that this rank has submitted is done, or until `until`. Never throws.
  void finish_pending(Clock::time_point until);

  // Tells the other ranks that this rank leaves, finishes what is in progress, and fails what is left. `grace`: how
  // long it waits for the others' answer. Idempotent. Not from a callback.
  void close(std::chrono::milliseconds grace);

  // See Registry.
  std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) {
    return executor_.register_memory(memory, bytes);
  }

  // Returns true if a collective failed here for another reason than a lost peer. Other ranks may wait for this rank in
  // the middle of it.
  bool failed_itself() const { return failed_itself_.load(std::memory_order_acquire); }

  // Looks now for lost ranks and for failures of queued work. Returns why the engine takes no more work; ok if it does,
  // or if it was only shut down. Blocks while another thread runs a cycle, not while it waits.
  Status inspect();

  // Makes the engine look at everything soon, for example because a rank was lost. Any thread.
  void wake() { driver_.wake(); }

 private:
  Cycle cycle() override;
  bool expects_progress() override;
  bool negotiates() override { return negotiator_.waiting(); }
  std::chrono::microseconds batching_delay() override { return batching_delay_; }

  template <class Call>
  void end_on_exception(const Call& call);
  void end_by_exception(const Status& why);
  Cycle step();
  void report_waiting(Clock::time_point now);
  bool take_new_work(Clock::time_point now);
  bool take_join();
  void begin_join();
  bool announce_shutdown();
  bool receive(Clock::time_point now);
  bool should_delay(bool arrived, Clock::time_point now);
  void deliver_plans();

  void execute_plan(std::span<const Decision> decisions);
  void execute_runs(std::span<const Decision> runs);
  void execute_other(const Decision& decision);
  void finish_join(const Status& status, int last_rank = 0);
  void check_device();

  void receive_last_messages();
  void send_last_messages(Clock::time_point deadline);
  void send_shutdown_messages();
  void fail(const Status& why, bool on_host);
  Status cause_of(const Status& failure) const;
  void report_failure(const Status& why);
  // `all`: also fails messages between two ranks; they go on if a rank left in order.
  void break_off(const Status& reason, bool all = true);

  Tree tree_;
  Link link_;
  EngineOptions options_;
  Liveness& liveness_;
  EngineTracing tracing_;
  PendingWork pending_;

  // The driver uses the members from here to the blank line.
  Negotiator negotiator_;
  PointToPoint point_to_point_;
  EngineTuning tuning_;
  PlanExecutor executor_;
  EngineQueries queries_;
  std::shared_ptr<Completion> joining_;
  Status broken_;
  Clock::time_point burst_since_{};
  std::chrono::microseconds batching_delay_{0};  // 0: no burst of requests arrives now
  bool small_burst_ = true;
  bool announced_shutdown_ = false;
  Clock::time_point next_check_{};  // of what waits too long

  std::mutex join_mutex_;  // guards asked_join_
  std::shared_ptr<Completion> asked_join_;

  std::atomic<bool> failed_itself_{false};
  std::atomic<bool> leaving_{false};
  Completion closed_;  // done once the engine takes part in nothing any more
  std::once_flag closing_;
  Driver driver_;  // last: its thread uses all of the above
};

}  // namespace perseus
