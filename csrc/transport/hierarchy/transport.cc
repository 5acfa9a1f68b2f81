#include "transport/hierarchy/transport.h"

#include <algorithm>
#include <utility>

#include "transport/hierarchy/staging.h"
#include "transport/scattered.h"

namespace perseus::hierarchy {
namespace {

constexpr std::size_t kLeastChunkBytes = 1 << 20;
constexpr std::size_t kMostChunkBytes = 8 << 20;

// Calls an observer for all allreduces in order, also for those without elements.
class InOrder final : public Observer {
 public:
  explicit InOrder(Observer& observer) : observer_(observer) {}

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

class HierarchicalTransport::Cursor {
 public:
  explicit Cursor(std::span<const Flow> flows) : flows_(flows) {
    for (const auto& flow : flows) bytes_ += static_cast<std::size_t>(flow.count) * flow.width;
    for (const auto& flow : flows) number_ += chunks_of(flow);
  }

  std::int64_t number() const { return number_; }  // number of chunks
  bool is_last(const Chunk& chunk) const { return chunk.index + 1 == chunks_of(flows_[chunk.flow]); }
  // Sets `chunk` to the next chunk.
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

HierarchicalTransport::HierarchicalTransport(const Layout& layout, int rank, Transports transports, bool flat_allreduce)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of(rank)),
      index_(layout.index_of(rank)),
      flat_allreduce_(flat_allreduce),
      leader_hosts_(layout.hosts_of_rail(0)),
      transports_(std::move(transports)) {
  if (has_rail()) rail_hosts_ = layout.hosts_of_rail(index_);
}

int HierarchicalTransport::rail_place(int host) const {
  return static_cast<int>(std::find(rail_hosts_.begin(), rail_hosts_.end(), host) - rail_hosts_.begin());
}

std::int64_t HierarchicalTransport::slice_begin(std::int64_t count, int rail) const {
  return rail == layout_.rail_count() ? count : count / kGrain * rail / layout_.rail_count() * kGrain;
}

std::vector<std::int64_t> HierarchicalTransport::slice_counts(std::int64_t count) const {
  std::vector<std::int64_t> counts(local_size(), 0);
  for (int rail = 0; rail < layout_.rail_count(); ++rail) {
    counts[static_cast<std::size_t>(rail)] = slice_begin(count, rail + 1) - slice_begin(count, rail);
  }
  return counts;
}

// Chunks of this size are few enough that the idle time of the network at their begin and end hardly counts.
std::int64_t HierarchicalTransport::chunk_elements(std::size_t bytes, std::size_t width) {
  const auto most = std::clamp(bytes / 8, kLeastChunkBytes, kMostChunkBytes);
  return static_cast<std::int64_t>(most / width) / kGrain * kGrain;
}

std::int64_t HierarchicalTransport::chunk_number(std::int64_t count, std::int64_t most) {
  return (count + most - 1) / most;
}

Status HierarchicalTransport::in_chunks(std::span<const Flow> flows, Observer* observer) {
  Cursor cursor(flows);
  const bool on_thread = has_rail() && cursor.number() > 1;
  Posted posted;
  Status status;
  for (std::int64_t i = 0; i < cursor.number() + kDepth && status.ok(); ++i) {
    if (i < cursor.number()) {
      auto& chunk = chunks_[static_cast<std::size_t>(i) % chunks_.size()];
      cursor.take(chunk);
      if (on_thread) choose_thread(chunk, i);
      if (observer != nullptr) observer->turns_to(chunk.flow);
      status = begin(chunk, flows[chunk.flow], on_thread, posted);
    }
    if (i < kDepth || !status.ok()) continue;
    auto& chunk = chunks_[static_cast<std::size_t>(i - kDepth) % chunks_.size()];
    if (on_thread) status = chunk.thread->wait(chunk.job);
    if (!status.ok()) break;
    if (observer != nullptr) observer->turns_to(chunk.flow);
    status = flows[chunk.flow].after(chunk);
    if (status.ok() && observer != nullptr && cursor.is_last(chunk)) observer->done(chunk.flow);
  }
  auto failure = posted.wait();
  return status.ok() ? failure : status;
}

// Executes the phase within the host and starts the transfer between hosts.
Status HierarchicalTransport::begin(Chunk& chunk, const Flow& flow, bool on_thread, Posted& posted) {
  chunk.counts = slice_counts(chunk.count);
  if (!on_thread) chunk.rail = transports_.rail.get();
  if (auto status = flow.before(chunk); !status.ok() || !has_rail()) return status;
  if (!on_thread) return flow.across(chunk);
  chunk.job = posted.post(*chunk.thread, [&chunk, &flow] { return flow.across(chunk); });
  return {};
}

// Chunks alternate between the rails, on all ranks alike.
void HierarchicalTransport::choose_thread(Chunk& chunk, std::int64_t number) {
  const bool second_rail = transports_.second_rail != nullptr && number % 2 == 1;
  auto& thread = threads_[second_rail ? 1 : 0];
  if (thread == nullptr) thread = std::make_unique<CommunicationThread>();
  chunk.thread = thread.get();
  chunk.rail = (second_rail ? transports_.second_rail : transports_.rail).get();
}

std::byte* HierarchicalTransport::place_of(const Scattered& scattered, Chunk& chunk, std::size_t width) {
  auto* data = scattered.contiguous(chunk.begin);
  return data != nullptr ? data : resized(chunk.packed, static_cast<std::size_t>(chunk.count) * width);
}

// The state of an allreduce in progress.
struct HierarchicalTransport::Reducing {
  Reducing(const Allreduce& all, int hosts)
      : levels(all.reduction, hosts),
        as_it_is(copy_of(all.reduction.dtype)),
        width(size_of(all.reduction.dtype)),
        from(all.in, width),
        to(all.out, width) {}

  Levels levels;
  Reduction as_it_is;
  std::size_t width;
  Scattered from, to;
};

HierarchicalTransport::Flow HierarchicalTransport::flow_of(const Reducing& reducing) {
  const auto before = [this, &reducing](Chunk& chunk) {
    const auto& [levels, as_it_is, width, from, to] = reducing;
    auto* source = place_of(from, chunk, width);
    if (from.contiguous() == nullptr) from.pack(as_it_is, chunk.begin, chunk.count, source);
    auto* slice =
        resized(chunk.slice, static_cast<std::size_t>(chunk.counts[static_cast<std::size_t>(index_)]) * width);
    return transports_.local->reduce_scatter(levels.local, source, slice, chunk.counts);
  };
  const auto across = [this, &reducing](Chunk& chunk) {
    const Piece piece{chunk.slice.data(), chunk.counts[static_cast<std::size_t>(index_)]};
    return chunk.rail->allreduce(reducing.levels.cross, {&piece, 1}, {&piece, 1});
  };
  const auto after = [this, &reducing](Chunk& chunk) {
    const auto& [levels, as_it_is, width, from, to] = reducing;
    auto* target = place_of(to, chunk, width);
    for (auto& bytes : chunk.counts) bytes *= static_cast<std::int64_t>(width);
    auto status = transports_.local->allgather(chunk.slice.data(), target, chunk.counts);
    if (to.contiguous() == nullptr) to.unpack(as_it_is, chunk.begin, chunk.count, target);
    return status;
  };
  return {reducing.from.count(), reducing.width, before, across, after};
}

Status HierarchicalTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  if (flat_allreduce_) return transports_.all->allreduce(reduction, in, out);
  return as_status([&]() -> Status {
    const Reducing reducing({reduction, in, out}, layout_.host_count());
    return in_chunks(flow_of(reducing));
  });
}

Status HierarchicalTransport::allreduce_each(std::span<const Allreduce> all, Observer& observer) {
  if (flat_allreduce_) return Transport::allreduce_each(all, observer);
  return as_status([&]() -> Status {
    std::vector<Reducing> reducing;
    std::vector<Flow> flows;
    reducing.reserve(all.size());
    flows.reserve(all.size());
    for (const auto& each : all) flows.push_back(flow_of(reducing.emplace_back(each, layout_.host_count())));
    InOrder everyone(observer);
    auto status = in_chunks(flows, &everyone);
    if (status.ok()) everyone.done_up_to(all.size());
    return status;
  });
}

Status HierarchicalTransport::broadcast(Pieces buffers, int root) {
  return as_status([&]() -> Status {
    const Scattered scattered(buffers, 1);
    return scattered.count() <= kSliceBytes ? broadcast_whole(scattered, root) : broadcast_slices(scattered, root);
  });
}

// Broadcasts within root's host, then between leaders, then within the other hosts.
Status HierarchicalTransport::broadcast_whole(const Scattered& buffers, int root) {
  const int root_host = layout_.host_of(root);
  const auto as_it_is = copy_of(DType::uint8);
  const bool staged = buffers.contiguous() == nullptr;
  auto* data = staged ? resized(whole_, static_cast<std::size_t>(buffers.count())) : buffers.contiguous();
  if (staged && rank_ == root) buffers.pack(as_it_is, 0, buffers.count(), data);
  const Piece piece{data, buffers.count()};
  if (host_ == root_host) {
    if (auto status = transports_.local->broadcast({&piece, 1}, layout_.index_of(root)); !status.ok()) return status;
  }
  if (index_ == 0) {
    if (auto status = transports_.rail->broadcast({&piece, 1}, rail_place(root_host)); !status.ok()) return status;
  }
  if (host_ != root_host) {
    if (auto status = transports_.local->broadcast({&piece, 1}, 0); !status.ok()) return status;
  }
  if (staged && rank_ != root) buffers.unpack(as_it_is, 0, buffers.count(), data);
  return {};
}

// Distributes slices within root's host, broadcasts each slice over its rail, and gathers the slices within each host.
Status HierarchicalTransport::broadcast_slices(const Scattered& buffers, int root) {
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
    return transports_.local->broadcast({&all, 1}, layout_.index_of(root));
  };
  const auto across = [&](Chunk& chunk) {
    auto* slice =
        host_ == root_host ? place_of(buffers, chunk, 1) + slice_begin(chunk.count, index_) : chunk.slice.data();
    const Piece piece{slice, chunk.counts[own]};
    return chunk.rail->broadcast({&piece, 1}, rail_place(root_host));
  };
  const auto after = [&](Chunk& chunk) -> Status {
    auto* data = place_of(buffers, chunk, 1);
    auto status = host_ == root_host ? Status() : transports_.local->allgather(chunk.slice.data(), data, chunk.counts);
    if (staged && rank_ != root) buffers.unpack(as_it_is, chunk.begin, chunk.count, data);
    return status;
  };
  return in_chunks({buffers.count(), 1, before, across, after});
}

Status HierarchicalTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return transports_.all->alltoall(in, send_bytes, out, recv_bytes);
}

Status HierarchicalTransport::barrier() {
  if (auto status = transports_.local->barrier(); !status.ok()) return status;
  if (index_ == 0) {
    if (auto status = transports_.rail->barrier(); !status.ok()) return status;
  }
  return transports_.local->barrier();
}

}  // namespace perseus::hierarchy
