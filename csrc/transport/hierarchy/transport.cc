#include "transport/hierarchy/transport.h"

#include <algorithm>
#include <map>
#include <utility>

#include "transport/hierarchy/staging.h"
#include "transport/scattered.h"

namespace perseus::hierarchy {
namespace {

constexpr std::size_t kLeastChunkBytes = 1 << 20;
constexpr std::size_t kMostChunkBytes = 8 << 20;
// What one collective has posted to the wires: it uses that collective's memory, so it ends before it.
class Pending {
 public:
  Pending() = default;
  ~Pending() { (void)wait(); }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  std::int64_t post(Wire& wire, Wire::Job job) { return last_[&wire] = wire.post(std::move(job)); }
  Status wait() {
    Status first;
    for (const auto& [wire, job] : last_) {
      if (auto status = wire->wait(job); first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  std::map<Wire*, std::int64_t> last_;
};

}  // namespace

ClusterTransport::ClusterTransport(const Layout& layout, int rank, Engines engines, bool flat_allreduce)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of(rank)),
      index_(layout.index_of(rank)),
      flat_allreduce_(flat_allreduce),
      leader_hosts_(layout.hosts_of_lane(0)),
      engines_(std::move(engines)) {
  if (has_lane()) lane_hosts_ = layout.hosts_of_lane(index_);
}

int ClusterTransport::lane_place(int host) const {
  return static_cast<int>(std::find(lane_hosts_.begin(), lane_hosts_.end(), host) - lane_hosts_.begin());
}

std::int64_t ClusterTransport::slice_begin(std::int64_t count, int lane) const {
  return lane == layout_.lane_count() ? count : count / kGrain * lane / layout_.lane_count() * kGrain;
}

std::vector<std::int64_t> ClusterTransport::slice_counts(std::int64_t count) const {
  std::vector<std::int64_t> counts(local_size(), 0);
  for (int lane = 0; lane < layout_.lane_count(); ++lane) {
    counts[static_cast<std::size_t>(lane)] = slice_begin(count, lane + 1) - slice_begin(count, lane);
  }
  return counts;
}

// Chunks are few enough that their beginnings and ends, when the wire is idle, hardly count.
std::int64_t ClusterTransport::chunk_elements(std::int64_t count, std::size_t width) {
  const auto bytes = std::clamp(static_cast<std::size_t>(count) * width / 8, kLeastChunkBytes, kMostChunkBytes);
  return static_cast<std::int64_t>(bytes / width) / kGrain * kGrain;
}

std::int64_t ClusterTransport::chunk_number(std::int64_t count, std::size_t width) {
  const auto most = chunk_elements(count, width);
  return (count + most - 1) / most;
}

Status ClusterTransport::in_chunks(std::int64_t count, std::size_t width, const Phase& before, const Phase& across,
                                   const Phase& after) {
  const auto most = chunk_elements(count, width);
  const auto number = chunk_number(count, width);
  const bool aside = has_lane() && number > 1;
  Pending pending;
  Status status;
  for (std::int64_t i = 0; i < number + kDepth && status.ok(); ++i) {
    if (i < number) {
      auto& chunk = chunks_[static_cast<std::size_t>(i) % chunks_.size()];
      chunk.index = i;
      chunk.begin = i * most;
      chunk.count = std::min(most, count - chunk.begin);
      chunk.counts = slice_counts(chunk.count);
      chunk.lane = engines_.lane.get();
      if (aside) choose_wire(chunk, i);
      status = before(chunk);
      if (status.ok() && aside) chunk.job = pending.post(*chunk.wire, [&chunk, &across] { return across(chunk); });
      if (status.ok() && has_lane() && !aside) status = across(chunk);
    }
    if (i < kDepth || !status.ok()) continue;
    auto& chunk = chunks_[static_cast<std::size_t>(i - kDepth) % chunks_.size()];
    if (aside) status = chunk.wire->wait(chunk.job);
    if (status.ok()) status = after(chunk);
  }
  auto failure = pending.wait();
  return status.ok() ? failure : status;
}

// They take turns, alike on all ranks.
void ClusterTransport::choose_wire(Chunk& chunk, std::int64_t number) {
  const bool beside = engines_.beside != nullptr && number % 2 == 1;
  auto& wire = wires_[beside ? 1 : 0];
  if (wire == nullptr) wire = std::make_unique<Wire>();
  chunk.wire = wire.get();
  if (beside) chunk.lane = engines_.beside.get();
}

std::byte* ClusterTransport::place_of(const Scattered& scattered, Chunk& chunk, std::size_t width) {
  auto* data = scattered.contiguous(chunk.begin);
  return data != nullptr ? data : resized(chunk.packed, static_cast<std::size_t>(chunk.count) * width);
}

Status ClusterTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  if (flat_allreduce_) return engines_.all->allreduce(reduction, in, out);
  return guarded([&]() -> Status {
    const Levels levels(reduction);
    const auto as_it_is = copy_of(reduction.dtype);
    const auto width = size_of(reduction.dtype);
    const Scattered from(in, width), to(out, width);
    const auto own = static_cast<std::size_t>(index_);
    const auto before = [&](Chunk& chunk) {
      auto* source = place_of(from, chunk, width);
      if (from.contiguous() == nullptr) from.pack(as_it_is, chunk.begin, chunk.count, source);
      auto* slice = resized(chunk.slice, static_cast<std::size_t>(chunk.counts[own]) * width);
      return engines_.local->reduce_scatter(levels.local, source, slice, chunk.counts);
    };
    const auto across = [&](Chunk& chunk) {
      const Piece piece{chunk.slice.data(), chunk.counts[own]};
      return chunk.lane->allreduce(levels.cross, {&piece, 1}, {&piece, 1});
    };
    const auto after = [&](Chunk& chunk) {
      auto* target = place_of(to, chunk, width);
      for (auto& bytes : chunk.counts) bytes *= static_cast<std::int64_t>(width);
      auto status = engines_.local->allgather(chunk.slice.data(), target, chunk.counts);
      if (to.contiguous() == nullptr) to.unpack(as_it_is, chunk.begin, chunk.count, target);
      return status;
    };
    return in_chunks(from.count(), width, before, across, after);
  });
}

Status ClusterTransport::broadcast(Pieces buffers, int root) {
  return guarded([&]() -> Status {
    const Scattered scattered(buffers, 1);
    return scattered.count() <= kSliceBytes ? broadcast_whole(scattered, root) : broadcast_slices(scattered, root);
  });
}

// Root's host, leader to leader, the other hosts.
Status ClusterTransport::broadcast_whole(const Scattered& buffers, int root) {
  const int root_host = layout_.host_of(root);
  const auto as_it_is = copy_of(DType::uint8);
  const bool staged = buffers.contiguous() == nullptr;
  auto* data = staged ? resized(whole_, static_cast<std::size_t>(buffers.count())) : buffers.contiguous();
  if (staged && rank_ == root) buffers.pack(as_it_is, 0, buffers.count(), data);
  const Piece piece{data, buffers.count()};
  if (host_ == root_host) {
    if (auto status = engines_.local->broadcast({&piece, 1}, layout_.index_of(root)); !status.ok()) return status;
  }
  if (index_ == 0) {
    if (auto status = engines_.lane->broadcast({&piece, 1}, lane_place(root_host)); !status.ok()) return status;
  }
  if (host_ != root_host) {
    if (auto status = engines_.local->broadcast({&piece, 1}, 0); !status.ok()) return status;
  }
  if (staged && rank_ != root) buffers.unpack(as_it_is, 0, buffers.count(), data);
  return {};
}

// Root's host, each lane its slice to the other hosts, and there all slices to everybody.
Status ClusterTransport::broadcast_slices(const Scattered& buffers, int root) {
  const int root_host = layout_.host_of(root);
  const auto as_it_is = copy_of(DType::uint8);
  const bool staged = buffers.contiguous() == nullptr;
  const auto own = static_cast<std::size_t>(index_);
  const auto before = [&](Chunk& chunk) -> Status {
    auto* data = place_of(buffers, chunk, 1);
    if (host_ != root_host) {
      resized(chunk.slice, static_cast<std::size_t>(chunk.counts[own]));
      return {};
    }
    if (staged && rank_ == root) buffers.pack(as_it_is, chunk.begin, chunk.count, data);
    const Piece all{data, chunk.count};
    return engines_.local->broadcast({&all, 1}, layout_.index_of(root));
  };
  const auto across = [&](Chunk& chunk) {
    auto* slice =
        host_ == root_host ? place_of(buffers, chunk, 1) + slice_begin(chunk.count, index_) : chunk.slice.data();
    const Piece piece{slice, chunk.counts[own]};
    return chunk.lane->broadcast({&piece, 1}, lane_place(root_host));
  };
  const auto after = [&](Chunk& chunk) -> Status {
    auto* data = place_of(buffers, chunk, 1);
    auto status = host_ == root_host ? Status() : engines_.local->allgather(chunk.slice.data(), data, chunk.counts);
    if (staged && rank_ != root) buffers.unpack(as_it_is, chunk.begin, chunk.count, data);
    return status;
  };
  return in_chunks(buffers.count(), 1, before, across, after);
}

Status ClusterTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return engines_.all->alltoall(in, send_bytes, out, recv_bytes);
}

Status ClusterTransport::barrier() {
  if (auto status = engines_.local->barrier(); !status.ok()) return status;
  if (index_ == 0) {
    if (auto status = engines_.lane->barrier(); !status.ok()) return status;
  }
  return engines_.local->barrier();
}

}  // namespace perseus::hierarchy
