// Lane's second half: what happens to a plan.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/fuse.h"
#include "engine/lane.h"
#include "engine/on_device.h"

namespace perseus {

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
  for (const auto& batch : fuse(requests, options_.fusion_threshold_bytes)) {
    // After a failure everything pending has been failed already.
    if (!broken_.ok()) return;
    std::vector<Task> together;
    together.reserve(batch.size());
    for (const auto i : batch) together.push_back(tasks[i]);
    run_batch(together);
    if (autotuner_) tune(together);
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
  if (!status.ok() && !about_sets) {
    link_.transport->give_up(status);
    if (status.kind() != ErrorKind::peer_lost) failed_itself_.store(true, std::memory_order_release);
    break_off(status);
    if (!request.on_host) tell_failure(status);
    return;
  }
  for (const auto& task : tasks) {
    if (task.work == nullptr) continue;
    const auto found = pending_.find(task.request->name);
    const auto work = std::move(found->second);
    pending_.erase(found);
    finish(*work, status.ok() ? work->failure : status);
  }
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
  liveness_.report_lost(tree_.world_ranks[static_cast<std::size_t>(tree_.rank)], "could not go on: " + why.text());
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
