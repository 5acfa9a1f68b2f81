#include "transport/hierarchy/pair.h"

#include <utility>
#include <vector>

namespace perseus::hierarchy {

// The allreduces alternate between the transports, on all ranks alike. Each thread has its next allreduce before the
// last one has ended.
Status PairTransport::allreduce_each(std::span<const Allreduce> all, Observer& observer) {
  if (all.size() < 2) return Transport::allreduce_each(all, observer);
  constexpr std::size_t kDepth = 2;
  std::vector<std::int64_t> jobs;
  jobs.reserve(all.size());
  Posted posted;
  for (std::size_t i = 0; i < all.size() + kDepth; ++i) {
    if (i < all.size()) {
      observer.turns_to(i);
      auto& thread = threads_[i % 2];
      if (thread == nullptr) thread = std::make_unique<CommunicationThread>();
      jobs.push_back(posted.post(*thread, [&transport = *transports_[i % 2], &one = all[i]] {
        return transport.allreduce(one.reduction, one.in, one.out);
      }));
    }
    if (i < kDepth) continue;
    const auto oldest = i - kDepth;
    if (auto status = threads_[oldest % 2]->wait(jobs[oldest]); !status.ok()) return status;
    observer.turns_to(oldest);
    observer.done(oldest);
  }
  return {};
}

}  // namespace perseus::hierarchy
