#include "transport/hierarchy/transport.h"

#include <algorithm>
#include <utility>

#include "transport/hierarchy/staging.h"
#include "transport/scattered.h"

namespace perseus::hierarchy {
namespace {

constexpr std::size_t kLeastChunkBytes = 1 << 20;
constexpr std::size_t kMostChunkBytes = 8 << 20;

// Tells of those without elements, too, in their places.
class EveryOne final : public Observer {
 public:
  explicit EveryOne(Observer& observer) : observer_(observer) {}

  void turns_to(std::size_t which) override {
    for (; begun_ < which; ++begun_) observer_.turns_to(begun_);
    observer_.turns_to(which);
    begun_ = std::max(begun_, which + 1);
  }
  void done(std::size_t which) override { done_up_to(which + 1); }
  void done_up_to(std::size_t end) {
    if (begun_ < end) turns_to(end - 1);
    while (done_ < end) observer_.done(done_++);
  }

 private:
  Observer& observer_;
  std::size_t begun_ = 0, done_ = 0;
};

}  // namespace

class ClusterTransport::Cursor {
 public:
  explicit Cursor(std::span<const Flow> flows) : flows_(flows) {
    for (const auto& flow : flows) bytes_ += static_cast<std::size_t>(flow.count) * flow.width;
    for (const auto& flow : flows) number_ += chunks_of(flow);
  }

  std::int64_t number() const { return number_; }  // of chunks
  bool is_last(const Chunk& chunk) const { return chunk.index + 1 == chunks_of(flows_[chunk.flow]); }
  // The next chunk's place.
  void take(Chunk& chunk) {
    while (index_ == chunks_of(flows_[flow_])) {
      ++flow_;
      index_ = 0;
    }
    const auto& flow = flows_[flow_];
    const auto most = chunk_elements(bytes_, flow.width);
    chunk.flow = flow_;
    chunk.index = index_++;
    chunk.begin = chunk.index * most;
    chunk.count = std::min(most, flow.count - chunk.begin);
  }

 private:
  std::int64_t chunks_of(const Flow& flow) const {
    return chunk_number(flow.count, chunk_elements(bytes_, flow.width));
  }

  std::span<const Flow> flows_;
  std::size_t bytes_ = 0, flow_ = 0;
  std::int64_t index_ = 0, number_ = 0;
};

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

// Chunks of so many bytes are few enough that their beginnings and ends, when the wire is idle, hardly count.
std::int64_t ClusterTransport::chunk_elements(std::size_t bytes, std::size_t width) {
  const auto most = std::clamp(bytes / 8, kLeastChunkBytes, kMostChunkBytes);
  return static_cast<std::int64_t>(most / width) / kGrain * kGrain;
}

std::int64_t ClusterTransport::chunk_number(std::int64_t count, std::int64_t most) { return (count + most - 1) / most; }

Status ClusterTransport::in_chunks(std::span<const Flow> flows, Observer* observer) {
  Cursor cursor(flows);
  const bool aside = has_lane() && cursor.number() > 1;
  Posted posted;
  Status status;
  for (std::int64_t i = 0; i < cursor.number() + kDepth && status.ok(); ++i) {
    if (i < cursor.number()) {
      auto& chunk = chunks_[static_cast<std::size_t>(i) % chunks_.size()];
      cursor.take(chunk);
      if (aside) choose_wire(chunk, i);
      if (observer != nullptr) observer->turns_to(chunk.flow);
      status = begin(chunk, flows[chunk.flow], aside, posted);
    }
    if (i < kDepth || !status.ok()) continue;
    auto& chunk = chunks_[static_cast<std::size_t>(i - kDepth) % chunks_.size()];
    if (aside) status = chunk.wire->wait(chunk.job);
    if (!status.ok()) break;
    if (observer != nullptr) observer->turns_to(chunk.flow);
    status = flows[chunk.flow].after(chunk);
    if (status.ok() && observer != nullptr && cursor.is_last(chunk)) observer->done(chunk.flow);
  }
  auto failure = posted.wait();
  return status.ok() ? failure : status;
}

// Within the host, and on the way across.
Status ClusterTransport::begin(Chunk& chunk, const Flow& flow, bool aside, Posted& posted) {
  chunk.counts = slice_counts(chunk.count);
  if (!aside) chunk.lane = engines_.lane.get();
  if (auto status = flow.before(chunk); !status.ok() || !has_lane()) return status;
  if (!aside) return flow.across(chunk);
  chunk.job = posted.post(*chunk.wire, [&chunk, &flow] { return flow.across(chunk); });
  return {};
}

// They take turns, alike on all ranks.
void ClusterTransport::choose_wire(Chunk& chunk, std::int64_t number) {
  const bool beside = engines_.beside != nullptr && number % 2 == 1;
  auto& wire = wires_[beside ? 1 : 0];
  if (wire == nullptr) wire = std::make_unique<Wire>();
  chunk.wire = wire.get();
  chunk.lane = (beside ? engines_.beside : engines_.lane).get();
}

std::byte* ClusterTransport::place_of(const Scattered& scattered, Chunk& chunk, std::size_t width) {
  auto* data = scattered.contiguous(chunk.begin);
  return data != nullptr ? data : resized(chunk.packed, static_cast<std::size_t>(chunk.count) * width);
}

// An allreduce on its way.
struct ClusterTransport::Reducing {
  explicit Reducing(const Allreduce& all)
      : levels(all.reduction),
        as_it_is(copy_of(all.reduction.dtype)),
        width(size_of(all.reduction.dtype)),
        from(all.in, width),
        to(all.out, width) {}

  Levels levels;
  Reduction as_it_is;
  std::size_t width;
  Scattered from, to;
};

ClusterTransport::Flow ClusterTransport::flow_of(const Reducing& reducing) {
  const auto before = [this, &reducing](Chunk& chunk) {
    const auto& [levels, as_it_is, width, from, to] = reducing;
    auto* source = place_of(from, chunk, width);
    if (from.contiguous() == nullptr) from.pack(as_it_is, chunk.begin, chunk.count, source);
    auto* slice =
        resized(chunk.slice, static_cast<std::size_t>(chunk.counts[static_cast<std::size_t>(index_)]) * width);
    return engines_.local->reduce_scatter(levels.local, source, slice, chunk.counts);
  };
  const auto across = [this, &reducing](Chunk& chunk) {
    const Piece piece{chunk.slice.data(), chunk.counts[static_cast<std::size_t>(index_)]};
    return chunk.lane->allreduce(reducing.levels.cross, {&piece, 1}, {&piece, 1});
  };
  const auto after = [this, &reducing](Chunk& chunk) {
    const auto& [levels, as_it_is, width, from, to] = reducing;
    auto* target = place_of(to, chunk, width);
    for (auto& bytes : chunk.counts) bytes *= static_cast<std::int64_t>(width);
    auto status = engines_.local->allgather(chunk.slice.data(), target, chunk.counts);
    if (to.contiguous() == nullptr) to.unpack(as_it_is, chunk.begin, chunk.count, target);
    return status;
  };
  return {reducing.from.count(), reducing.width, before, across, after};
}

Status ClusterTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  if (flat_allreduce_) return engines_.all->allreduce(reduction, in, out);
  return guarded([&]() -> Status {
    const Reducing reducing({reduction, in, out});
    return in_chunks(flow_of(reducing));
  });
}

Status ClusterTransport::allreduce_each(std::span<const Allreduce> all, Observer& observer) {
  if (flat_allreduce_) return Transport::allreduce_each(all, observer);
  return guarded([&]() -> Status {
    std::vector<Reducing> reducing;
    std::vector<Flow> flows;
    reducing.reserve(all.size());
    flows.reserve(all.size());
    for (const auto& each : all) flows.push_back(flow_of(reducing.emplace_back(each)));
    EveryOne everyone(observer);
    auto status = in_chunks(flows, &everyone);
    if (status.ok()) everyone.done_up_to(all.size());
    return status;
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
  return in_chunks({buffers.count(), 1, before, across, after});
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
