// Executes what the ranks of a process set have agreed on: fuses requests into batches, moves their data, and finishes
// their work items.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "control/tree.h"
#include "engine/engine_options.h"
#include "engine/execute/device_streams.h"
#include "engine/execute/execute.h"
#include "engine/pending_work.h"
#include "engine/session/registry.h"
#include "engine/session/tuning.h"
#include "engine/tracing.h"
#include "transport/transport.h"

namespace perseus {

// Used by the driver of the engine, except for register_memory().
class PlanExecutor {
 public:
  // A failure of the transport. `on_host`: not on a device, so that the end of a peer may have caused it.
  struct Failure {
    Status status;
    bool on_host = true;
  };

  // Objects passed by reference must outlive this one.
  PlanExecutor(Transport& transport, const Tree& tree, const EngineOptions& options, EngineTracing& tracing,
               PendingWork& pending, EngineTuning& tuning, SetVerbs set_verbs);

  // Executes these requests in their order, and finishes the work of this rank for them. After a failure nothing more
  // is executed, and the work that is left is still pending.
  std::optional<Failure> run(const std::vector<const Request*>& requests);

  // Returns the error of work that was queued on a device before, if any.
  Status check_device() { return device_streams_ ? device_streams_->check() : Status(); }
  bool device_is_busy() const { return device_streams_ && device_streams_->busy(); }
  // Ends work that is queued on a device and would otherwise wait there without end.
  void abort(const Status& why);

  // Registers device memory that is communicated repeatedly: see Registry. Thread-safe.
  std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) { return registry_.add(memory, bytes); }

 private:
  using Batch = std::vector<BatchItem>;
  class Overlapping;

  std::vector<Batch> batches_of(const std::vector<const Request*>& requests);
  std::optional<Failure> run_batch(const Batch& batch);
  std::optional<Failure> run_overlapping(std::span<const Batch> batches);
  Status move_data(const Batch& batch);
  Status move_data_on_host(const Batch& batch);
  Status move_data_on_device(const Batch& batch);
  DeviceStreams& device_streams(const Batch& batch);
  void finish(const Batch& batch, const Status& status);
  void mark_lent(std::span<const Batch> batches);

  Transport& transport_;
  const Tree& tree_;
  const EngineOptions& options_;
  EngineTracing& tracing_;
  PendingWork& pending_;
  EngineTuning& tuning_;
  SetVerbs set_verbs_;
  NanCheck nan_check_;
  Registry registry_;
  std::unique_ptr<DeviceStreams> device_streams_;  // made by the first batch on a device
  std::int64_t executed_ = 0;                      // requests so far, the same on all ranks
};

}  // namespace perseus
