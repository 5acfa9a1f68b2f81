// The values of one engine that the autotuner may change while the engine runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "control/negotiator.h"
#include "engine/engine_options.h"
#include "engine/execute/execute.h"
#include "transport/transport.h"
#include "tune/autotuner.h"

namespace perseus {

// The root of the world measures and proposes values. All ranks begin to use them at the same place of a plan, because
// fusion and chunks must be the same everywhere. Used by the driver of the engine.
class EngineTuning {
 public:
  EngineTuning(const EngineOptions& options, bool is_root, Transport& transport, Negotiator& negotiator);

  std::int64_t fusion_threshold_bytes() const { return fusion_threshold_bytes_; }
  std::chrono::microseconds batching_delay() const { return batching_delay_; }

  // Counts a batch that was executed. At the root this may propose new values.
  void executed(const std::vector<BatchItem>& items);

  // Begins to use the values of a decision.
  void use(const std::vector<std::int64_t>& values);

 private:
  Transport& transport_;
  Negotiator& negotiator_;
  std::int64_t fusion_threshold_bytes_;
  std::chrono::microseconds batching_delay_;
  std::unique_ptr<Autotuner> autotuner_;  // at the root, if autotuning was asked for
};

}  // namespace perseus
