#include "engine/execute/fuse.h"

namespace perseus {

namespace {

// A tensor of this size or more gains nothing from fusion, and one in the arena would lose its reduction in place.
constexpr std::int64_t kAloneBytes = 1 << 20;

bool may_share(const Request& request, std::int64_t threshold_bytes) {
  const auto bytes = request.bytes();
  return results_of(request.verb) == Results::same_shapes && request.members.size() == 1 && bytes < kAloneBytes &&
         bytes < threshold_bytes;
}

bool same_kind(const Request& a, const Request& b) {
  const bool dtype = a.verb == Verb::broadcast || a.members.front().dtype == b.members.front().dtype;
  return dtype && a.verb == b.verb && a.op == b.op && a.scale == b.scale && a.wire_dtype == b.wire_dtype &&
         a.root == b.root && a.on_host == b.on_host;
}

}  // namespace

std::vector<Batch> fuse(const std::vector<const Request*>& requests, std::int64_t threshold_bytes) {
  struct Open {
    std::size_t batch;
    std::int64_t bytes;
  };
  std::vector<Batch> batches;
  std::vector<Open> open;  // batches that still take more; few, since kinds are few
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& request = *requests[i];
    bool placed = false;
    if (may_share(request, threshold_bytes)) {
      for (auto& candidate : open) {
        if (!same_kind(*requests[batches[candidate.batch].front()], request)) continue;
        if (candidate.bytes + request.bytes() > threshold_bytes) continue;
        batches[candidate.batch].push_back(i);
        candidate.bytes += request.bytes();
        placed = true;
        break;
      }
      if (!placed) open.push_back({batches.size(), request.bytes()});
    }
    if (!placed) batches.push_back({i});
  }
  return batches;
}

}  // namespace perseus
