#include "transport/hierarchy/pair.h"

#include <utility>
#include <vector>

namespace perseus::hierarchy {

// They take turns, alike on all ranks. Each wire has its next one before the last has ended.
Status PairTransport::allreduce_each(std::span<const Allreduce> all, Observer& observer) {
  if (all.size() < 2) return Transport::allreduce_each(all, observer);
  constexpr std::size_t kDepth = 2;
  std::vector<std::int64_t> jobs;
  jobs.reserve(all.size());
  Posted posted;
  for (std::size_t i = 0; i < all.size() + kDepth; ++i) {
    if (i < all.size()) {
      observer.turns_to(i);
      auto& wire = wires_[i % 2];
      if (wire == nullptr) wire = std::make_unique<Wire>();
      jobs.push_back(posted.post(*wire, [&engine = *engines_[i % 2], &one = all[i]] {
        return engine.allreduce(one.reduction, one.in, one.out);
      }));
    }
    if (i < kDepth) continue;
    const auto oldest = i - kDepth;
    if (auto status = wires_[oldest % 2]->wait(jobs[oldest]); !status.ok()) return status;
    observer.turns_to(oldest);
    observer.done(oldest);
  }
  return {};
}

}  // namespace perseus::hierarchy
