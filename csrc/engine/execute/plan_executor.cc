#include "engine/execute/plan_executor.h"

#include <algorithm>
#include <utility>

#include "base/wait/blocking.h"
#include "device/host/kernels.h"
#include "engine/execute/fuse.h"
#include "engine/execute/on_device.h"

namespace perseus {

namespace {

bool has_several_dtypes(const Request& request) {
  const auto other = [&](const Member& member) { return member.dtype != request.members.front().dtype; };
  return std::any_of(request.members.begin(), request.members.end(), other);
}

}  // namespace

PlanExecutor::PlanExecutor(Transport& transport, const Tree& tree, const EngineOptions& options, EngineTracing& tracing,
                           PendingWork& pending, EngineTuning& tuning, SetVerbs set_verbs)
    : transport_(transport),
      tree_(tree),
      options_(options),
      tracing_(tracing),
      pending_(pending),
      tuning_(tuning),
      set_verbs_(std::move(set_verbs)),
      nan_check_(options.nan_check) {}

std::optional<PlanExecutor::Failure> PlanExecutor::run(const std::vector<const Request*>& requests) {
  const auto overlaps = [](const Batch& batch) { return may_overlap(*batch.front().request); };
  const auto batches = batches_of(requests);
  for (auto at = batches.begin(); at != batches.end();) {
    // The NaN check is a collective itself, and runs before the next batch.
    const bool one_by_one = !transport_.overlaps_allreduces() || nan_check_ != NanCheck::off;
    const auto end = one_by_one ? at : std::find_if_not(at, batches.end(), overlaps);
    if (end - at > 1 || (end != at && has_several_dtypes(*at->front().request))) {
      if (auto failure = run_overlapping({at, end})) return failure;
      at = end;
    } else {
      if (auto failure = run_batch(*at)) return failure;
      tuning_.executed(*at);
      ++at;
    }
  }
  return std::nullopt;
}

std::vector<PlanExecutor::Batch> PlanExecutor::batches_of(const std::vector<const Request*>& requests) {
  Batch items;
  items.reserve(requests.size());
  for (const auto* request : requests) items.push_back({request, pending_.find(request->name)});
  if (tracing_.on()) tracing_.decided(items, executed_);
  executed_ += static_cast<std::int64_t>(items.size());
  std::vector<Batch> batches;
  for (const auto& indices : fuse(requests, tuning_.fusion_threshold_bytes())) {
    auto& batch = batches.emplace_back();
    batch.reserve(indices.size());
    for (const auto i : indices) batch.push_back(items[i]);
  }
  return batches;
}

std::optional<PlanExecutor::Failure> PlanExecutor::run_batch(const Batch& batch) {
  const auto& request = *batch.front().request;
  const bool about_sets = request.verb == Verb::add_process_set || request.verb == Verb::remove_process_set;
  Completion* completion = batch.front().work == nullptr ? nullptr : &batch.front().work->completion;
  options_.progress->begin(request, batch.size() - 1);
  // Devices and the verbs about sets may wait for other sets.
  if (about_sets || !request.on_host) before_blocking();
  const auto status = about_sets ? set_verbs_(request, completion) : move_data(batch);
  options_.progress->end();
  // A process set verb that fails moved no data: only a failure of the transport ends the engine.
  if (!status.ok() && !about_sets) {
    if (request.on_host) mark_lent({&batch, 1});
    return Failure{status, request.on_host};
  }
  finish(batch, status);
  return std::nullopt;
}

void PlanExecutor::finish(const Batch& batch, const Status& status) {
  for (const auto& item : batch) {
    if (item.work != nullptr) pending_.finish(item.request->name, status);
  }
}

// After a failure of the transport a peer may still use the tensors of the batches in progress. Batches that are done
// are not pending any more.
void PlanExecutor::mark_lent(std::span<const Batch> batches) {
  if (!transport_.has_lent_memory()) return;
  for (const auto& batch : batches) {
    for (const auto& item : batch) {
      if (auto* work = pending_.find(item.request->name)) work->completion.memory_is_lent = true;
    }
  }
}

// Finishes each batch as soon as its results are there. Progress is reported for the first batch that is not done.
class PlanExecutor::Overlapping final : public Observer {
 public:
  Overlapping(PlanExecutor& executor, std::span<const Batch> batches) : executor_(executor), batches_(batches) {
    begin(0);
    if (!executor.tracing_.on()) return;
    meter_.emplace();
    traces_.resize(batches.size());
  }
  ~Overlapping() override {
    if (done_ < batches_.size()) executor_.options_.progress->end();
  }
  Overlapping(const Overlapping&) = delete;
  Overlapping& operator=(const Overlapping&) = delete;

  void turns_to(std::size_t which) override {
    if (meter_) trace(*meter_, which);
  }

  void done(std::size_t which) override {
    const auto& batch = batches_[which];
    if (meter_) {
      const auto began = trace(*meter_, which);
      executor_.tracing_.ends(batch, began, traces_[which].copies);
    }
    executor_.options_.progress->end();
    executor_.finish(batch, {});
    executor_.tuning_.executed(batch);
    done_ = which + 1;
    if (done_ < batches_.size()) begin(done_);
  }

 private:
  struct Trace {
    std::optional<EngineTracing::Clock::time_point> began;
    host::CopyTimes copies;
  };

  void begin(std::size_t which) {
    const auto& batch = batches_[which];
    executor_.options_.progress->begin(*batch.front().request, batch.size() - 1);
  }
  // Counts what was copied since the last call for the batch of that call. Returns when batch `which` began.
  EngineTracing::Clock::time_point trace(const host::CopyMeter& meter, std::size_t which) {
    auto& copies = traces_[at_].copies;
    copies.in += meter.times().in - seen_.in;
    copies.out += meter.times().out - seen_.out;
    seen_ = meter.times();
    at_ = which;
    auto& began = traces_[which].began;
    if (!began) {
      began = EngineTracing::Clock::now();
      executor_.tracing_.begins(batches_[which], executor_.transport_.name());
    }
    return *began;
  }

  PlanExecutor& executor_;
  std::span<const Batch> batches_;
  std::size_t done_ = 0;  // number of batches that are done
  std::optional<host::CopyMeter> meter_;
  std::vector<Trace> traces_;
  std::size_t at_ = 0;
  host::CopyTimes seen_;
};

std::optional<PlanExecutor::Failure> PlanExecutor::run_overlapping(std::span<const Batch> batches) {
  auto status = Status();
  {
    Overlapping observer(*this, batches);
    status = execute_each(transport_, tree_.world_ranks, batches, observer);
  }
  if (status.ok()) return std::nullopt;
  mark_lent(batches);
  return Failure{status};
}

Status PlanExecutor::move_data(const Batch& batch) {
  return batch.front().request->on_host ? move_data_on_host(batch) : move_data_on_device(batch);
}

Status PlanExecutor::move_data_on_host(const Batch& batch) {
  if (!tracing_.on()) return execute(transport_, tree_.world_ranks, batch, nan_check_);
  const host::CopyMeter copies;
  const auto began = EngineTracing::Clock::now();
  tracing_.begins(batch, transport_.name());
  auto status = execute(transport_, tree_.world_ranks, batch, nan_check_);
  if (status.ok()) tracing_.ends(batch, began, copies.times());
  return status;
}

Status PlanExecutor::move_data_on_device(const Batch& batch) {
  try {
    auto& streams = device_streams(batch);
    if (!tracing_.on()) return streams.execute(batch);
    const host::CopyMeter copies;
    const auto began = EngineTracing::Clock::now();
    tracing_.begins(batch, streams.name(*batch.front().request));
    auto status = streams.execute(batch);
    if (status.ok()) tracing_.ends(batch, began, copies.times());
    return status;
  } catch (const Error& error) {
    return Status::from(error);
  }
}

// Collective: all ranks make their streams at the same place of the plan, including ranks that have joined.
DeviceStreams& PlanExecutor::device_streams(const Batch& batch) {
  if (device_streams_) return *device_streams_;
  std::shared_ptr<Device> device;
  for (const auto& item : batch) {
    if (item.work != nullptr) device = item.work->completion.on_device->device;
  }
  if (!device) device = options_.device();
  device_streams_ =
      std::make_unique<DeviceStreams>(std::move(device), transport_, tree_.world_ranks, options_.device_transports,
                                      options_.streams, options_.negotiator.stalls.shutdown, registry_);
  return *device_streams_;
}

void PlanExecutor::abort(const Status& why) {
  if (device_streams_) device_streams_->abort(why);
}

}  // namespace perseus
