#include "engine/session/tuning.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace perseus {

EngineTuning::EngineTuning(const EngineOptions& options, bool is_root, Transport& transport, Negotiator& negotiator)
    : transport_(transport),
      negotiator_(negotiator),
      fusion_threshold_bytes_(options.fusion_threshold_bytes),
      batching_delay_(options.batching_delay) {
  if (!options.autotune || !is_root) return;
  const auto streams = transport.streams();
  const Tunables start = {fusion_threshold_bytes_, batching_delay_.count(),
                          static_cast<std::int64_t>(transport.chunk_bytes()), streams};
  auto autotune = *options.autotune;
  if (streams == 1) autotune.fixed[static_cast<std::size_t>(Tunable::streams)] = true;
  if (std::all_of(autotune.fixed.begin(), autotune.fixed.end(), std::identity())) return;
  autotuner_ = std::make_unique<Autotuner>(std::move(autotune), start);
}

void EngineTuning::executed(const std::vector<BatchItem>& items) {
  if (!autotuner_) return;
  const auto now = Autotuner::Clock::now();
  for (const auto& item : items) {
    const auto values = autotuner_->executed(item.request->name, item.request->bytes(), now);
    if (!values) continue;
    Decision decision;
    decision.kind = Decision::Kind::tune;
    decision.values.assign(values->begin(), values->end());
    negotiator_.propose(std::move(decision));
  }
}

void EngineTuning::use(const std::vector<std::int64_t>& values) {
  if (values.size() != kTunables) return;
  const auto value = [&](Tunable which) { return values[static_cast<std::size_t>(which)]; };
  fusion_threshold_bytes_ = value(Tunable::fusion_threshold_bytes);
  batching_delay_ = std::chrono::microseconds(value(Tunable::batching_delay_us));
  transport_.set_chunk_bytes(static_cast<std::size_t>(value(Tunable::chunk_bytes)));
  transport_.set_streams(static_cast<int>(value(Tunable::streams)));
  if (autotuner_) autotuner_->applied();
}

}  // namespace perseus
