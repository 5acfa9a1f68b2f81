#include "transport/shm/host_plan.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace perseus::shm {

namespace {

constexpr std::size_t kSmall = 8 * 1024;  // beyond this size a second sync costs less than reading all of all members
constexpr std::size_t kMostChunk = 4 * 1024 * 1024;

// The settings that each rank sends to the others.
struct RankSettings {
  cpu_set_t cores;
  std::size_t chunk_bytes;
  std::size_t headroom;
};

// Returns a chunk size for which two slots, a peer's slots and the user's memory stay in the cache of a rank's core.
std::size_t chunk_for_caches() {
  const auto l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const std::size_t bytes = l2 > 0 ? static_cast<std::size_t>(l2) : 1024 * 1024;
  return std::clamp<std::size_t>(bytes / 8, 64 * 1024, 256 * 1024);
}

}  // namespace

HostPlan agree_on_plan(LocalRendezvous& rendezvous, std::vector<int> ranks, const FabricOptions& options) {
  RankSettings mine{};
  if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0) CPU_ZERO(&mine.cores);
  mine.chunk_bytes = options.chunk_bytes != 0 ? options.chunk_bytes : chunk_for_caches();
  mine.headroom = options.tunable ? 4 : 1;
  std::string bytes(sizeof mine, '\0');
  std::memcpy(bytes.data(), &mine, sizeof mine);

  auto all = mine;
  for (const auto& text : rendezvous.allgather(bytes)) {
    RankSettings view{};
    if (text.size() != sizeof view) continue;
    std::memcpy(&view, text.data(), sizeof view);
    CPU_OR(&all.cores, &all.cores, &view.cores);
    all.chunk_bytes = std::min(all.chunk_bytes, view.chunk_bytes);
    all.headroom = std::min(all.headroom, view.headroom);
  }
  const bool crowded = static_cast<int>(ranks.size()) > CPU_COUNT(&all.cores);
  HostPlan plan;
  plan.local_rank = rendezvous.rank();
  plan.chunk_bytes = all.chunk_bytes;
  plan.headroom = all.headroom;
  // Each chunk needs a context switch between threads that share a core, which costs more than the cache saves.
  if (crowded && options.chunk_bytes == 0) plan.chunk_bytes *= 4;
  plan.spin = options.spin;
  plan.crowded = crowded;
  plan.ranks = std::move(ranks);
  return plan;
}

Staging staging_for(const HostPlan& plan, int members) {
  const auto count = static_cast<std::size_t>(members);
  const auto chunk = std::bit_floor(std::clamp(plan.chunk_bytes, least_chunk_bytes(count), kMostChunk));
  const auto most = std::bit_floor(std::min(chunk * plan.headroom, std::max(chunk, kMostChunk)));
  return {.small_bytes = kSmall, .chunk_bytes = most, .usual_chunk_bytes = chunk};
}

}  // namespace perseus::shm
