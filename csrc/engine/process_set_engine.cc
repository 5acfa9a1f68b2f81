#include "engine/process_set_engine.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/wait/blocking.h"

namespace perseus {

namespace {

constexpr std::chrono::milliseconds kCheck{100};  // how often waiting work is checked for stalls

}  // namespace

ProcessSetEngine::ProcessSetEngine(Tree tree, Link link, EngineOptions options, Liveness& liveness, SetVerbs set_verbs)
    : tree_(tree),
      link_(std::move(link)),
      options_(std::move(options)),
      liveness_(liveness),
      tracing_(options_.timeline, options_.trace_suffix),
      pending_(tracing_),
      negotiator_(std::move(tree), options_.negotiator),
      point_to_point_(*link_.control, tree_.world_ranks),
      tuning_(options_, tree_.is_root(), *link_.transport, negotiator_),
      executor_(*link_.transport, tree_, options_, tracing_, pending_, tuning_, std::move(set_verbs)),
      queries_(tree_, *link_.control, [this](const std::string& name) { return pending_.contains(name); }),
      driver_(*this, *link_.control,
              {.spin = options_.spin,
               .core = options_.core,
               .several_hosts = options_.several_hosts,
               .threads = options_.threads}) {
  // Copies of one object of options must not share it.
  if (!options_.progress) options_.progress = std::make_shared<EngineProgress>();
  driver_.start();
}

ProcessSetEngine::~ProcessSetEngine() { close(std::chrono::milliseconds(0)); }

void ProcessSetEngine::choose_wire_dtype(Request& request) const {
  const bool may = request.verb == Verb::allreduce && request.op == ReduceOp::sum && request.wire_dtype < 0;
  if (!may || !options_.wire_dtype || request.bytes() < options_.wire_from_bytes) return;
  request.wire_dtype = static_cast<std::int8_t>(*options_.wire_dtype);
}

void ProcessSetEngine::submit(std::shared_ptr<WorkItem> work, Notify notify) {
  pending_.put(std::move(work));
  if (notify == Notify::now) wake();
}

void ProcessSetEngine::contradict(std::string_view name, const std::string& call) {
  pending_.contradict(name, call);
  wake();
}

std::shared_ptr<Completion> ProcessSetEngine::post(std::shared_ptr<PointToPointOp> operation) {
  std::shared_ptr<Completion> completion(operation, &operation->completion);
  point_to_point_.post(std::move(operation));
  wake();
  return completion;
}

std::shared_ptr<Completion> ProcessSetEngine::join(const Prepare& prepare) {
  auto completion = std::make_shared<Completion>();
  if (prepare) prepare(completion);
  {
    std::scoped_lock lock(join_mutex_);
    if (asked_join_) {
      completion->on_done = nullptr;  // the callback may own the completion
      throw Error(ErrorKind::invalid_argument, "join() is already under way on this rank");
    }
    asked_join_ = completion;
    pending_.refuse("rank " + std::to_string(tree_.world_ranks[static_cast<std::size_t>(tree_.rank)]) +
                    " has called join(), which says that it has no more work; submit before join(), or wait until "
                    "join() returns");
  }
  wake();
  return completion;
}

void ProcessSetEngine::wait(Completion& completion, bool notified, Clock::time_point until) {
  if (completion.done()) return;
  const WaitTracing traced(tracing_);
  const Completion::Waiter waiter(completion);
  driver_.wait(completion, notified, until);
}

void ProcessSetEngine::finish_pending(Clock::time_point until) {
  for (const auto& completion : pending_.in_flight()) driver_.wait(*completion, false, until);
}

std::optional<std::vector<int>> ProcessSetEngine::missing(const std::string& name, Clock::time_point until) {
  struct Query {
    std::vector<int> ranks;
    Completion completion;
  };
  const auto query = std::make_shared<Query>();
  queries_.ask(name, [this, query](const RankSet& ranks) {
    for (const int rank : ranks.ranks()) query->ranks.push_back(tree_.world_ranks[static_cast<std::size_t>(rank)]);
    query->completion.finish({});
  });
  wake();
  wait(query->completion, true, until);
  if (!query->completion.done()) return std::nullopt;
  return query->ranks;
}

bool ProcessSetEngine::expects_progress() {
  return negotiator_.waiting() || !pending_.empty() || joining_ || point_to_point_.expects() || queries_.any() ||
         executor_.device_is_busy();
}

// The engine's only catch. An exception that `call` throws fails all pending work with its text. The exception must end
// neither the process, on the engine's thread, nor the caller's wait.
template <class Call>
void ProcessSetEngine::end_on_exception(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    end_by_exception(Status::from(error));
  } catch (const std::bad_alloc&) {
    end_by_exception({ErrorKind::unavailable, "the engine has not enough memory"});
  } catch (const std::exception& error) {
    end_by_exception({ErrorKind::transport, std::string("the engine failed: ") + error.what()});
  }
}

void ProcessSetEngine::end_by_exception(const Status& why) {
  // The exception may have come between begin() and end().
  options_.progress->end();
  fail(why, true);
}

// After an exception the engine is broken and all waits are over: there is nothing to do until the next notification.
ProcessSetEngine::Cycle ProcessSetEngine::cycle() {
  auto result = Cycle::idle;
  end_on_exception([&] { result = step(); });
  return result;
}

ProcessSetEngine::Cycle ProcessSetEngine::step() {
  if (liveness_.any_lost() && (broken_.ok() || !point_to_point_.is_over())) break_off(liveness_.status());
  const auto now = Clock::now();
  const bool traced = tracing_.on();
  negotiator_.note_arrivals(traced);
  if (driver_.take_urgent()) negotiator_.request_flush();
  const bool posted = point_to_point_.make_progress();
  queries_.progress(now);
  const bool arrived = take_new_work(now);
  const bool received = receive(now);
  const bool checks = now >= next_check_;
  if (checks) {
    negotiator_.check_stalls(now);
    report_waiting(now);
    check_device();
    next_check_ = now + kCheck;
  }
  if (traced) tracing_.arrived(negotiator_.take_arrivals());
  if (should_delay(arrived, now)) return Cycle::delay;
  if (traced && (arrived || received)) tracing_.cycle(now);
  for (auto& message : negotiator_.flush(now)) link_.control->send(message.to, std::move(message.bytes));
  bool decided = false;
  for (auto plan = negotiator_.take_decisions(); !plan.empty(); plan = negotiator_.take_decisions()) {
    deliver_plans();
    execute_plan(plan);
    decided = true;
  }
  const auto& awaited = options_.progress->awaited();
  if (decided || (awaited && point_to_point_.awaited() != awaited)) options_.progress->report_waiting({}, now);
  // When all decisions are executed: a waiter of a request that is decided is not blocked.
  if (checks && negotiator_.suspects()) {
    for (const auto& name : pending_.awaited_names()) negotiator_.record_waiter(name);
  }
  return posted || arrived || received || decided || negotiator_.has_news() ? Cycle::busy : Cycle::idle;
}

void ProcessSetEngine::report_waiting(Clock::time_point now) {
  EngineProgress::Wait waiting{.label = pending_.any_label()};
  if (auto operation = waiting.label.empty() ? point_to_point_.awaited() : nullptr) {
    waiting.from = tree_.world_ranks[static_cast<std::size_t>(operation->peer)];
    waiting.label = "a message from rank " + std::to_string(waiting.from);
    waiting.operation = std::move(operation);
  }
  options_.progress->report_waiting(std::move(waiting), now);
}

bool ProcessSetEngine::take_new_work(Clock::time_point now) {
  constexpr std::int64_t kSmall = 256 << 10;
  const bool joins = take_join();  // before take_new(): what was submitted before join() is a part of this rank's work
  const auto contradictions = pending_.take_contradictions();  // before take_new(), which takes what they contradict
  const auto taken = pending_.take_new();
  for (const auto* work : taken) {
    small_burst_ = small_burst_ && work->request.bytes() <= kSmall;
    negotiator_.submit(work->request, now);
  }
  for (const auto& request : contradictions) negotiator_.contradict(request);
  if (joins) begin_join();
  return joins || announce_shutdown() || !taken.empty() || !contradictions.empty();
}

bool ProcessSetEngine::take_join() {
  std::scoped_lock lock(join_mutex_);
  if (!asked_join_ || joining_) return false;
  joining_ = asked_join_;
  return true;
}

void ProcessSetEngine::begin_join() {
  if (broken_.ok()) {
    negotiator_.join();
  } else {
    finish_join(broken_);
  }
}

bool ProcessSetEngine::announce_shutdown() {
  if (!leaving_.load(std::memory_order_acquire) || point_to_point_.has_outgoing() ||
      std::exchange(announced_shutdown_, true)) {
    return false;
  }
  // After a loss, the other ranks learn of the loss themselves; this rank need not announce that it leaves because of
  // it.
  if (broken_.ok() || !liveness_.any_lost()) {
    point_to_point_.leave();
    negotiator_.leave();
  }
  return true;
}

bool ProcessSetEngine::receive(Clock::time_point now) {
  bool any = false;
  ControlMessage message;
  while ((broken_.ok() || !point_to_point_.is_over()) && link_.control->receive(message)) {
    any = true;
    if (PointToPoint::is_point_to_point(message.bytes)) {
      point_to_point_.receive(message.from, std::move(message.bytes));
    } else if (MissingRankQuery::is_of(message.bytes)) {
      queries_.receive(message.from, message.bytes, now);
    } else if (broken_.ok()) {
      negotiator_.receive(message.from, message.bytes, now);
    }
  }
  return any;
}

// A plan that is too long for the channel is sent in parts. All parts must have reached the children before the plan's
// collective begins: children cannot take part while they wait for the rest, and nobody here would send it.
void ProcessSetEngine::deliver_plans() {
  constexpr std::chrono::microseconds kPatience{200};
  auto& doorbell = link_.control->doorbell();
  for (const int child : tree_.children) {
    auto seen = doorbell.notifications();
    while (link_.control->keeps_for(child) && broken_.ok() && !liveness_.any_lost()) {
      before_blocking();
      receive(Clock::now());
      if (link_.control->keeps_for(child)) doorbell.wait(seen, Sleeper::caller, kPatience);
      seen = doorbell.notifications();
    }
  }
}

// Requests arrive in bursts; waiting briefly lets a burst share a message and a buffer. The longer a burst lasts, the
// longer are the delays: each look takes a core from the thread that submits.
bool ProcessSetEngine::should_delay(bool arrived, Clock::time_point now) {
  constexpr int kMostDelays = 50;
  const auto least = tuning_.batching_delay();
  // A plan is executed before new work is taken again: a failure in it ends what was submitted before it.
  const bool worth = arrived && small_burst_ && !negotiator_.has_decisions() && !negotiator_.urgent() &&
                     least.count() > 0 && !leaving_.load(std::memory_order_relaxed);
  if (worth && batching_delay_.count() == 0) burst_since_ = now;
  if (worth && now - burst_since_ < kMostDelays * least) {
    batching_delay_ = std::max(least, batching_delay_ * 2);
    return true;
  }
  batching_delay_ = std::chrono::microseconds(0);
  small_burst_ = true;
  return false;
}

void ProcessSetEngine::execute_plan(std::span<const Decision> decisions) {
  const auto runs = [](const Decision& decision) { return decision.kind == Decision::Kind::run; };
  for (auto at = decisions.begin(); at != decisions.end();) {
    const auto end = std::find_if_not(at, decisions.end(), runs);
    execute_runs({at, end});
    if (end == decisions.end()) return;
    execute_other(*end);
    at = end + 1;
  }
}

void ProcessSetEngine::execute_runs(std::span<const Decision> runs) {
  constexpr std::int64_t kLarge = 1 << 20;  // takes longer than waking a thread
  // After a failure everything pending has been failed already.
  if (runs.empty() || !broken_.ok()) return;
  std::vector<const Request*> requests;
  requests.reserve(runs.size());
  std::int64_t bytes = 0;
  for (const auto& run : runs) {
    requests.push_back(run.request.get());
    bytes += requests.back()->bytes();
  }
  if (bytes >= kLarge) before_blocking();
  if (const auto failure = executor_.run(requests)) fail(failure->status, failure->on_host);
}

void ProcessSetEngine::execute_other(const Decision& decision) {
  const auto& name = decision.name();
  switch (decision.kind) {
    case Decision::Kind::run: break;
    case Decision::Kind::suspect: next_check_ = {}; break;
    case Decision::Kind::fail: pending_.finish(name, {decision.error, decision.text}); break;
    case Decision::Kind::joined: finish_join({}, decision.rank); break;
    case Decision::Kind::warn:
      if (tree_.is_root() || pending_.contains(name)) log(LogLevel::warning, decision.text);
      break;
    case Decision::Kind::tune: tuning_.use(decision.values); break;
    case Decision::Kind::close:
      if (decision.rank == tree_.world_ranks[static_cast<std::size_t>(tree_.rank)]) {
        break_off({ErrorKind::shut_down, "this rank was shut down while it waited"});
      } else {
        break_off({decision.error, decision.text}, decision.rank < 0);
      }
      break;
  }
}

void ProcessSetEngine::finish_join(const Status& status, int last_rank) {
  const auto joining = std::exchange(joining_, nullptr);
  if (!joining) return;
  {
    std::scoped_lock lock(join_mutex_);
    asked_join_.reset();
    pending_.refuse({});
  }
  joining->number = last_rank;
  joining->finish(status);
}

// Work that was queued on a device may fail when no caller waits for it any more, so the log has the failure, too.
void ProcessSetEngine::check_device() {
  if (const auto status = executor_.check_device(); !status.ok() && broken_.ok()) {
    log(LogLevel::error, status.text());
    failed_itself_.store(true, std::memory_order_release);
    break_off(status);
    report_failure(status);
  }
}

Status ProcessSetEngine::inspect() {
  Status found;
  {
    const auto lock = driver_.lock();
    end_on_exception([&] {
      if (liveness_.any_lost() && broken_.ok()) break_off(liveness_.status());
      check_device();
    });
    found = broken_;
  }
  // The engine's thread may have found the lock taken, and left a message for later.
  wake();
  return !found.ok() && found.kind() == ErrorKind::shut_down ? Status() : found;
}

void ProcessSetEngine::close(std::chrono::milliseconds grace) {
  std::call_once(closing_, [&] {
    leaving_.store(true, std::memory_order_release);
    wake();
    const auto deadline = Clock::now() + grace;
    while (!closed_.done() && !liveness_.any_lost() && Clock::now() < deadline) {
      closed_.wait(std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()));
    }
    // The engine may be in a collective whose peers are gone; transports look at the liveness and return.
    driver_.stop();
    const auto lock = driver_.lock();
    end_on_exception([&] {
      send_last_messages(deadline);
      take_new_work(Clock::now());
      send_shutdown_messages();
    });
    const Status reason(ErrorKind::shut_down, "this rank was shut down while it waited");
    break_off(reason);
    point_to_point_.close(reason);
  });
}

}  // namespace perseus
