// The options of a process set's engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "control/negotiator.h"
#include "engine/engine_threads.h"
#include "engine/execute/device_streams.h"
#include "engine/execute/nan_check.h"
#include "stall/engine_progress.h"
#include "trace/timeline.h"
#include "tune/autotuner.h"

namespace perseus {

struct EngineOptions {
  NegotiatorOptions negotiator;
  std::int64_t fusion_threshold_bytes = 64 << 20;
  std::chrono::microseconds batching_delay{20};
  std::chrono::microseconds spin{30};
  int core = -1;                           // the core that the engine's own thread is bound to; -1: any
  std::shared_ptr<EngineThreads> threads;  // run the engine's cycles; null: a thread of its own
  bool several_hosts = false;              // the ranks are on several hosts
  Timeline* timeline = nullptr;            // outlives the engine
  std::string trace_suffix;                // follows the names of tensors in the timeline
  std::optional<AutotuneOptions> autotune;
  NanCheck nan_check = NanCheck::off;
  // The dtype in which floating values cross hosts if the request names none, for tensors of `wire_from_bytes` or more.
  // Only for sets on several hosts.
  std::optional<DType> wire_dtype;
  std::int64_t wire_from_bytes = 0;
  int streams = 1;                                  // device streams for collectives that overlap
  std::function<std::shared_ptr<Device>()> device;  // returns the device of a rank that has joined; throws Error
  DeviceTransports device_transports;
  std::shared_ptr<EngineProgress> progress;  // the engine writes its steps there; null: nobody reads them
};

// Executes a process set verb, which changes the session and moves no data.
using SetVerbs = std::function<Status(const Request&, Completion*)>;

}  // namespace perseus
