#include "transport/shm/thread_world.h"

#include <fcntl.h>

#include <numeric>
#include <utility>

namespace perseus::shm {

std::vector<std::unique_ptr<ShmFabric>> make_thread_fabrics(int ranks, Liveness& liveness,
                                                            const FabricOptions& options) {
  constexpr std::size_t kArenaBytes = std::size_t{256} << 20;
  constexpr std::size_t kChunkBytes = 128 * 1024;
  Segments segments;
  std::vector<DatagramPair> sockets;
  for (int r = 0; r < ranks; ++r) {
    const auto bytes = options.arena_bytes != 0 ? options.arena_bytes : kArenaBytes;
    segments.push_back(std::make_shared<Segment>(Segment::create(bytes)));
    sockets.push_back(new_datagram_pair());
  }
  std::vector<std::unique_ptr<ShmFabric>> fabrics;
  for (int r = 0; r < ranks; ++r) {
    HostPlan plan;
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    std::iota(plan.ranks.begin(), plan.ranks.end(), 0);
    plan.local_rank = r;
    plan.chunk_bytes = options.chunk_bytes != 0 ? options.chunk_bytes : kChunkBytes;
    plan.headroom = options.tunable ? 4 : 1;
    plan.spin = options.spin;
    plan.crowded = true;
    Inboxes inboxes{std::move(sockets[static_cast<std::size_t>(r)].receiver), {}};
    for (const auto& pair : sockets) inboxes.senders.emplace_back(fcntl(pair.sender.get(), F_DUPFD_CLOEXEC, 0));
    fabrics.push_back(std::make_unique<ShmFabric>(segments, std::move(inboxes), std::move(plan), liveness));
  }
  return fabrics;
}

}  // namespace perseus::shm
