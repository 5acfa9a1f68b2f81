// Lane's second half: what happens to a plan.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine/fuse.h"
#include "engine/lane.h"
#include "engine/on_device.h"

namespace perseus {

namespace {

bool has_several_dtypes(const Request& request) {
  const auto other = [&](const Member& member) { return member.dtype != request.members.front().dtype; };
  return std::any_of(request.members.begin(), request.members.end(), other);
}

}  // namespace

void Lane::carry_out(std::span<const Decision> decisions) {
  const auto runs = [](const Decision& decision) { return decision.kind == Decision::Kind::run; };
  for (auto at = decisions.begin(); at != decisions.end();) {
    const auto end = std::find_if_not(at, decisions.end(), runs);
    carry_out_runs({at, end});
    if (end == decisions.end()) return;
    carry_out_other(*end);
    at = end + 1;
  }
}

void Lane::carry_out_other(const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::run: break;
    case Decision::Kind::fail: fail(decision); break;
    case Decision::Kind::joined:
      if (auto done = std::exchange(joining_, nullptr)) {
        {
          std::scoped_lock lock(join_mutex_);
          asked_join_.reset();
        }
        done->number = decision.rank;
        done->finish({});
      }
      break;
    case Decision::Kind::warn:
      if (tree_.is_root() || pending_.contains(decision.request.name)) log(LogLevel::warning, decision.text);
      break;
    case Decision::Kind::tune: use(decision.values); break;
    case Decision::Kind::close:
      if (decision.rank == tree_.world_ranks[static_cast<std::size_t>(tree_.rank)]) {
        break_off({ErrorKind::shut_down, "this rank was shut down while it waited"});
      } else {
        break_off({decision.error, decision.text}, decision.rank < 0);
      }
      break;
  }
}

void Lane::carry_out_runs(std::span<const Decision> runs) {
  if (runs.empty()) return;
  std::vector<Task> tasks;
  std::vector<const Request*> requests;
  tasks.reserve(runs.size());
  requests.reserve(runs.size());
  for (const auto& run : runs) {
    Task task;
    task.request = run.cached ? &negotiator_.agreed(run.id) : &run.request;
    if (const auto found = pending_.find(task.request->name); found != pending_.end()) task.work = found->second.get();
    tasks.push_back(task);
    requests.push_back(task.request);
  }
  if (tracing_.on()) tracing_.decided(tasks, carried_out_);
  carried_out_ += static_cast<std::int64_t>(tasks.size());
  std::vector<std::vector<Task>> batches;
  for (const auto& batch : fuse(requests, options_.fusion_threshold_bytes)) {
    auto& together = batches.emplace_back();
    together.reserve(batch.size());
    for (const auto i : batch) together.push_back(tasks[i]);
  }
  run_batches(batches);
}

void Lane::run_batches(std::span<const std::vector<Task>> batches) {
  const auto overlaps = [](const std::vector<Task>& batch) { return may_overlap(*batch.front().request); };
  // After a failure everything pending has been failed already.
  for (auto at = batches.begin(); at != batches.end() && broken_.ok();) {
    // A check of what came out is a collective itself, before the next one.
    const bool one_by_one = !link_.transport->overlaps_allreduces() || options_.nan_check != NanCheck::off;
    const auto end = one_by_one ? at : std::find_if_not(at, batches.end(), overlaps);
    if (end - at > 1 || (end != at && has_several_dtypes(*at->front().request))) {
      run_overlapping({at, end});
      at = end;
    } else {
      run_batch(*at);
      if (autotuner_) tune(*at);
      ++at;
    }
  }
}

void Lane::run_batch(const std::vector<Task>& tasks) {
  const auto& request = *tasks.front().request;
  const bool about_sets = request.verb == Verb::add_process_set || request.verb == Verb::remove_process_set;
  Completion* completion = tasks.front().work == nullptr ? nullptr : &tasks.front().work->completion;
  options_.underway->begin(request, tasks.size() - 1);
  const auto status = about_sets ? set_verbs_(request, completion) : move_data(tasks);
  options_.underway->end();
  // A set that cannot be made leaves data where it was: only a transport's failure ends the lane.
  if (!status.ok() && !about_sets) return fail_batch(status, request.on_host);
  finish_batch(tasks, status);
}

void Lane::finish_batch(const std::vector<Task>& tasks, const Status& status) {
  for (const auto& task : tasks) {
    if (task.work == nullptr) continue;
    const auto found = pending_.find(task.request->name);
    const auto work = std::move(found->second);
    pending_.erase(found);
    finish(*work, status.ok() ? work->failure : status);
  }
}

// A transport's failure. Peers in the same collective notice it by the transport itself; what is on a device they do
// not.
void Lane::fail_batch(const Status& status, bool on_host) {
  link_.transport->give_up(status);
  if (status.kind() != ErrorKind::peer_lost) failed_itself_.store(true, std::memory_order_release);
  break_off(status);
  if (!on_host) tell_failure(status);
}

// A failure between collectives, which no peer notices by itself.
void Lane::fail_lane(const Status& status) { fail_batch(status, false); }

// Finishes the works of each as soon as its data are there. What is under way is said to be the first that is not done.
class Lane::Overlapping final : public Observer {
 public:
  Overlapping(Lane& lane, std::span<const std::vector<Task>> batches) : lane_(lane), batches_(batches) {
    begin(0);
    if (!lane.tracing_.on()) return;
    meter_.emplace();
    traces_.resize(batches.size());
  }
  ~Overlapping() override {
    if (done_ < batches_.size()) lane_.options_.underway->end();
  }
  Overlapping(const Overlapping&) = delete;
  Overlapping& operator=(const Overlapping&) = delete;

  void turns_to(std::size_t which) override {
    if (meter_) trace(which);
  }

  void done(std::size_t which) override {
    const auto& tasks = batches_[which];
    if (meter_) {
      trace(which);
      lane_.tracing_.ends(tasks, *traces_[which].began, traces_[which].copies);
    }
    lane_.options_.underway->end();
    lane_.finish_batch(tasks, {});
    if (lane_.autotuner_) lane_.tune(tasks);
    done_ = which + 1;
    if (done_ < batches_.size()) begin(done_);
  }

 private:
  struct Trace {
    std::optional<Clock::time_point> began;
    host::CopyTimes copies;
  };

  void begin(std::size_t which) {
    const auto& tasks = batches_[which];
    lane_.options_.underway->begin(*tasks.front().request, tasks.size() - 1);
  }
  // What was copied since the last call was for that one's sake.
  void trace(std::size_t which) {
    auto& copies = traces_[at_].copies;
    copies.in += meter_->times().in - seen_.in;
    copies.out += meter_->times().out - seen_.out;
    seen_ = meter_->times();
    at_ = which;
    if (traces_[which].began) return;
    traces_[which].began = Clock::now();
    lane_.tracing_.begins(batches_[which], lane_.link_.transport->name());
  }

  Lane& lane_;
  std::span<const std::vector<Task>> batches_;
  std::size_t done_ = 0;  // so many
  std::optional<host::CopyMeter> meter_;
  std::vector<Trace> traces_;
  std::size_t at_ = 0;
  host::CopyTimes seen_;
};

void Lane::run_overlapping(std::span<const std::vector<Task>> batches) {
  auto status = Status();
  {
    Overlapping observer(*this, batches);
    status = execute_each(*link_.transport, tree_.world_ranks, batches, observer);
  }
  if (!status.ok()) fail_batch(status, true);
}

Status Lane::move_data(const std::vector<Task>& tasks) {
  if (!tasks.front().request->on_host) return move_data_on_device(tasks);
  if (!tracing_.on()) return execute(*link_.transport, tree_.world_ranks, tasks, options_.nan_check);
  const host::CopyMeter copies;
  const auto began = Clock::now();
  tracing_.begins(tasks, link_.transport->name());
  auto status = execute(*link_.transport, tree_.world_ranks, tasks, options_.nan_check);
  if (status.ok()) tracing_.ends(tasks, began, copies.times());
  return status;
}

Status Lane::move_data_on_device(const std::vector<Task>& tasks) {
  try {
    auto& lane = device_lane(tasks);
    if (!tracing_.on()) return lane.execute(tasks);
    const host::CopyMeter copies;
    const auto began = Clock::now();
    tracing_.begins(tasks, lane.name(*tasks.front().request));
    auto status = lane.execute(tasks);
    if (status.ok()) tracing_.ends(tasks, began, copies.times());
    return status;
  } catch (const Error& error) {
    return Status::from(error);
  }
}

// All ranks make theirs at the same place of the plan: those that have joined, too.
DeviceLane& Lane::device_lane(const std::vector<Task>& tasks) {
  if (device_lane_) return *device_lane_;
  std::shared_ptr<Device> device;
  for (const auto& task : tasks) {
    if (task.work != nullptr) device = task.work->completion.on_device->device;
  }
  if (!device) device = options_.device();
  device_lane_ = std::make_unique<DeviceLane>(std::move(device), *link_.transport, tree_.world_ranks,
                                              options_.device_transports, options_.streams, registry_);
  return *device_lane_;
}

// What was queued on the device fails when nobody may be looking any more.
void Lane::check_device() {
  if (const auto status = device_lane_->check(); !status.ok() && broken_.ok()) {
    failed_itself_.store(true, std::memory_order_release);
    break_off(status);
    tell_failure(status);
  }
}

// The others may see nothing of it: their part is queued, and waits on their devices for this rank's.
void Lane::tell_failure(const Status& why) {
  if (why.kind() == ErrorKind::peer_lost) return;
  const int rank = tree_.world_ranks[static_cast<std::size_t>(tree_.rank)];
  liveness_.report_lost({.rank = rank, .text = "could not go on: " + why.text(), .gave_up = true});
}

void Lane::tune(const std::vector<Task>& tasks) {
  const auto now = Clock::now();
  for (const auto& task : tasks) {
    const auto values = autotuner_->carried_out(task.request->name, task.request->bytes(), now);
    if (!values) continue;
    Decision decision;
    decision.kind = Decision::Kind::tune;
    decision.values.assign(values->begin(), values->end());
    negotiator_.propose(std::move(decision));
  }
}

// At the same place of the plan on all ranks: fusion and chunks must be alike everywhere.
void Lane::use(const std::vector<std::int64_t>& values) {
  if (values.size() != kTunables) return;
  const auto value = [&](Tunable which) { return values[static_cast<std::size_t>(which)]; };
  options_.fusion_threshold_bytes = value(Tunable::fusion_threshold_bytes);
  options_.linger = std::chrono::microseconds(value(Tunable::linger_us));
  link_.transport->set_chunk_bytes(static_cast<std::size_t>(value(Tunable::chunk_bytes)));
  link_.transport->set_streams(static_cast<int>(value(Tunable::streams)));
  if (autotuner_) autotuner_->applied();
}

void Lane::finish(Work& work, Status status) {
  if (work.open_phases > 0) tracing_.finished(work, status);
  // The name is free before the waiter can know that the work is done.
  inbox_.done(work.request.name);
  if (!status.ok() && status.kind() != ErrorKind::disagreement) status = told_of(work, std::move(status));
  work.completion.finish(std::move(status));
}

void Lane::fail(const Decision& decision) {
  const auto found = pending_.find(decision.request.name);
  if (found == pending_.end()) return;
  const auto work = std::move(found->second);
  pending_.erase(found);
  finish(*work, {decision.error, decision.text});
}

// Where nobody has heard yet that this rank leaves: the engine's thread may not have run meanwhile.
void Lane::say_last_words() {
  if (!broken_.ok() || liveness_.any_lost()) return;
  for (auto& message : negotiator_.last_words()) link_.control->send(message.to, std::move(message.bytes));
}

void Lane::break_off(const Status& reason, bool all) {
  if (broken_.ok()) broken_ = reason;
  // Work that is queued on a device would wait there for ever. Where a rank left in order it is queued there, too.
  if (device_lane_ && (liveness_.any_lost() || failed_itself())) device_lane_->give_up(reason);
  inbox_.close(broken_);
  if (all) {
    hear_last_letters();
    letters_.fail(reason);
  }
  for (auto& [name, work] : std::exchange(pending_, {})) finish(*work, broken_);
  for (auto& work : std::exchange(taken_, {})) {
    if (work) finish(*work, broken_);
  }
  for (auto& work : inbox_.take()) finish(*work, broken_);
  if (auto joining = std::exchange(joining_, nullptr)) {
    {
      std::scoped_lock lock(join_mutex_);
      asked_join_.reset();
    }
    joining->finish(broken_);
  }
  if (!closed_.done()) closed_.finish({});
}

}  // namespace perseus
