#include "transport/hierarchy/transport.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "transport/scattered.h"

namespace perseus::hierarchy {
namespace {

// Bounds the memory that a chunk's slices and scattered pieces are staged in.
constexpr std::size_t kChunkBytes = 64 << 20;
// Below it one message between hosts beats one per lane.
constexpr std::int64_t kSliceBytes = 64 << 10;
constexpr std::int64_t kGrain = 64;  // elements: slices begin at multiples of it

std::byte* resized(std::vector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) buffer.resize(bytes);
  return buffer.data();
}

bool is_16_bit(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

// Packs and unpacks elements as they are.
Reduction copy_of(DType dtype) {
  Reduction reduction;
  reduction.dtype = reduction.wire = dtype;
  return reduction;
}

// One reduction as two: within hosts, then between them.
struct Levels {
  explicit Levels(const Reduction& whole) : local(whole), cross(whole) {
    local.wire = whole.dtype;
    // A host's sum that is to be averaged may not fit 16 bits, and what follows is linear: it is scaled early.
    const bool early = whole.op == ReduceOp::sum && is_16_bit(whole.wire);
    if (!early) local.scale = {.pre = whole.scale.pre};
    cross.scale = early ? Scale{} : Scale{.post = whole.scale.post, .divisor = whole.scale.divisor};
  }

  Reduction local, cross;
};

std::vector<std::size_t> offsets_of(Counts counts) {
  std::vector<std::size_t> offsets(counts.size() + 1, 0);
  for (std::size_t r = 0; r < counts.size(); ++r) offsets[r + 1] = offsets[r] + static_cast<std::size_t>(counts[r]);
  return offsets;
}

// `all` holds the ranks' bytes in another order than theirs.
void put_in_order(const std::vector<int>& order, Counts bytes, const std::byte* all, std::byte* out) {
  const auto offsets = offsets_of(bytes);
  for (const int r : order) {
    const auto rank = static_cast<std::size_t>(r);
    const auto count = static_cast<std::size_t>(bytes[rank]);
    if (count > 0) std::memcpy(out + offsets[rank], all, count);
    all += count;
  }
}

template <class Work>
Status guarded(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable, "not enough memory to stage a collective between hosts"};
  }
}

}  // namespace

ClusterTransport::ClusterTransport(const Layout& layout, int rank, Engines engines)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of(rank)),
      index_(layout.index_of(rank)),
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

Status ClusterTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  return guarded([&]() -> Status {
    const auto as_it_is = copy_of(reduction.dtype);
    const auto width = size_of(reduction.dtype);
    const Scattered from(in, width), to(out, width);
    const auto chunk = static_cast<std::int64_t>(kChunkBytes / width);
    for (std::int64_t begin = 0; begin < from.count(); begin += chunk) {
      const auto count = std::min(chunk, from.count() - begin);
      auto* source = from.contiguous(begin);
      auto* target = to.contiguous(begin);
      auto* staged =
          source != nullptr && target != nullptr ? nullptr : resized(whole_, static_cast<std::size_t>(count) * width);
      if (source == nullptr) from.pack(as_it_is, begin, count, staged);
      auto status =
          allreduce_chunk(reduction, source == nullptr ? staged : source, target == nullptr ? staged : target, count);
      if (!status.ok()) return status;
      if (target == nullptr) to.unpack(as_it_is, begin, count, staged);
    }
    return {};
  });
}

Status ClusterTransport::allreduce_chunk(const Reduction& reduction, const void* in, void* out, std::int64_t count) {
  const Levels levels(reduction);
  const auto width = size_of(reduction.dtype);
  auto counts = slice_counts(count);
  const auto mine = counts[static_cast<std::size_t>(index_)];
  auto* slice = resized(slice_, static_cast<std::size_t>(mine) * width);
  if (auto status = engines_.local->reduce_scatter(levels.local, in, slice, counts); !status.ok()) return status;
  if (has_lane()) {
    const Piece piece{slice, mine};
    if (auto status = engines_.lane->allreduce(levels.cross, {&piece, 1}, {&piece, 1}); !status.ok()) return status;
  }
  for (auto& bytes : counts) bytes *= static_cast<std::int64_t>(width);
  return engines_.local->allgather(slice, out, counts);
}

Status ClusterTransport::broadcast(Pieces buffers, int root) {
  return guarded([&]() -> Status {
    const auto as_it_is = copy_of(DType::uint8);
    const Scattered scattered(buffers, 1);
    const auto chunk = static_cast<std::int64_t>(kChunkBytes);
    for (std::int64_t begin = 0; begin < scattered.count(); begin += chunk) {
      const auto bytes = std::min(chunk, scattered.count() - begin);
      auto* data = scattered.contiguous(begin);
      const bool staged = data == nullptr;
      if (staged) data = resized(whole_, static_cast<std::size_t>(bytes));
      if (staged && rank_ == root) scattered.pack(as_it_is, begin, bytes, data);
      auto status = bytes <= kSliceBytes ? broadcast_whole(data, bytes, root) : broadcast_slices(data, bytes, root);
      if (!status.ok()) return status;
      if (staged && rank_ != root) scattered.unpack(as_it_is, begin, bytes, data);
    }
    return {};
  });
}

// Root's host, leader to leader, the other hosts.
Status ClusterTransport::broadcast_whole(void* data, std::int64_t bytes, int root) {
  const int root_host = layout_.host_of(root);
  const Piece piece{data, bytes};
  if (host_ == root_host) {
    if (auto status = engines_.local->broadcast({&piece, 1}, layout_.index_of(root)); !status.ok()) return status;
  }
  if (index_ == 0) {
    if (auto status = engines_.lane->broadcast({&piece, 1}, lane_place(root_host)); !status.ok()) return status;
  }
  return host_ == root_host ? Status() : engines_.local->broadcast({&piece, 1}, 0);
}

// Root's host, each lane its slice to the other hosts, and there all slices to everybody.
Status ClusterTransport::broadcast_slices(void* data, std::int64_t bytes, int root) {
  const int root_host = layout_.host_of(root);
  const Piece all{data, bytes};
  if (host_ == root_host) {
    if (auto status = engines_.local->broadcast({&all, 1}, layout_.index_of(root)); !status.ok()) return status;
  }
  const auto counts = slice_counts(bytes);
  const auto mine = counts[static_cast<std::size_t>(index_)];
  std::byte* slice = nullptr;
  if (has_lane()) {
    slice = host_ == root_host ? static_cast<std::byte*>(data) + slice_begin(bytes, index_)
                               : resized(slice_, static_cast<std::size_t>(mine));
    const Piece piece{slice, mine};
    if (auto status = engines_.lane->broadcast({&piece, 1}, lane_place(root_host)); !status.ok()) return status;
  }
  return host_ == root_host ? Status() : engines_.local->allgather(slice, data, counts);
}

// Hosts gather theirs, leaders exchange them, and everybody gets all from its leader.
Status ClusterTransport::allgather(const void* in, void* out, Counts bytes) {
  return guarded([&]() -> Status {
    std::vector<int> order;  // group ranks as the leaders' blocks hold them
    std::vector<std::int64_t> local_bytes, host_bytes;
    for (const int host : leader_hosts_) {
      std::int64_t sum = 0;
      for (const int rank : layout_.ranks_on(host)) {
        order.push_back(rank);
        sum += bytes[static_cast<std::size_t>(rank)];
        if (host == host_) local_bytes.push_back(bytes[static_cast<std::size_t>(rank)]);
      }
      host_bytes.push_back(sum);
    }
    std::int64_t total = 0;
    for (const auto sum : host_bytes) total += sum;
    const bool in_order = std::is_sorted(order.begin(), order.end());
    // Staged before anything is written to `out`, of which `in` may be a part.
    std::int64_t mine = 0;
    for (const auto count : local_bytes) mine += count;
    auto* block = resized(slice_, static_cast<std::size_t>(mine));
    if (auto status = engines_.local->allgather(in, block, local_bytes); !status.ok()) return status;
    auto* all = in_order ? static_cast<std::byte*>(out) : resized(whole_, static_cast<std::size_t>(total));
    if (index_ == 0) {
      if (auto status = engines_.lane->allgather(block, all, host_bytes); !status.ok()) return status;
    }
    const Piece piece{all, total};
    if (auto status = engines_.local->broadcast({&piece, 1}, 0); !status.ok()) return status;
    if (!in_order) put_in_order(order, bytes, all, static_cast<std::byte*>(out));
    return {};
  });
}

Status ClusterTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return engines_.all->alltoall(in, send_bytes, out, recv_bytes);
}

// Every host's block is cut into one part per lane. The input is arranged by lane, so that within the host lane k gets
// its part of every host's block; across hosts each host keeps its own; within the host the parts make the block.
Status ClusterTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  return guarded([&]() -> Status {
    const Levels levels(reduction);
    const auto width = size_of(reduction.dtype);
    const auto blocks = block_counts(counts);
    std::vector<std::int64_t> by_lane(local_size(), 0);
    for (const auto block : blocks) {
      const auto parts = slice_counts(block);
      std::transform(by_lane.begin(), by_lane.end(), parts.begin(), by_lane.begin(), std::plus<>());
    }
    const auto index = static_cast<std::size_t>(index_);
    const auto* arranged = arrange_by_lane(static_cast<const std::byte*>(in), counts, width);
    auto* partial = resized(slice_, static_cast<std::size_t>(by_lane[index]) * width);
    if (auto status = engines_.local->reduce_scatter(levels.local, arranged, partial, by_lane); !status.ok()) {
      return status;
    }
    const auto own_block = blocks[static_cast<std::size_t>(host_)];
    auto part_bytes = slice_counts(own_block);
    for (auto& bytes : part_bytes) bytes *= static_cast<std::int64_t>(width);
    Memory part(static_cast<std::size_t>(part_bytes[index]));
    if (has_lane()) {
      std::vector<std::int64_t> by_host;
      for (const int host : lane_hosts_) by_host.push_back(slice_counts(blocks[static_cast<std::size_t>(host)])[index]);
      auto status = engines_.lane->reduce_scatter(levels.cross, partial, part.data(), by_host);
      if (!status.ok()) return status;
    }
    auto* block = resized(whole_, static_cast<std::size_t>(own_block) * width);
    if (auto status = engines_.local->allgather(part.data(), block, part_bytes); !status.ok()) return status;
    copy_own(counts, width, block, out);
    return {};
  });
}

// Elements that the ranks of each host get together.
std::vector<std::int64_t> ClusterTransport::block_counts(Counts counts) const {
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(layout_.host_count()), 0);
  for (int r = 0; r < size(); ++r) {
    blocks[static_cast<std::size_t>(layout_.host_of(r))] += counts[static_cast<std::size_t>(r)];
  }
  return blocks;
}

// By lane, then by host as that lane counts them: the lane's part of the host's block.
const std::byte* ClusterTransport::arrange_by_lane(const std::byte* in, Counts counts, std::size_t width) {
  const auto offsets = offsets_of(counts);
  const auto blocks = block_counts(counts);
  auto* base = resized(whole_, offsets.back() * width);
  auto* to = base;
  for (int lane = 0; lane < layout_.lane_count(); ++lane) {
    for (const int host : layout_.hosts_of_lane(lane)) {
      // The host's ranks as pieces of one block.
      std::vector<Piece> pieces;
      for (const int r : layout_.ranks_on(host)) {
        const auto rank = static_cast<std::size_t>(r);
        pieces.push_back({const_cast<std::byte*>(in) + offsets[rank] * width, counts[rank]});
      }
      const auto block = blocks[static_cast<std::size_t>(host)];
      const auto begin = slice_begin(block, lane), count = slice_begin(block, lane + 1) - begin;
      const auto bytes = static_cast<std::int64_t>(width);
      for (auto& piece : pieces) piece.count *= bytes;
      Scattered(pieces, 1).pack(copy_of(DType::uint8), begin * bytes, count * bytes, to);
      to += static_cast<std::size_t>(count) * width;
    }
  }
  return base;
}

void ClusterTransport::copy_own(Counts counts, std::size_t width, const std::byte* block, void* out) const {
  for (const int r : layout_.ranks_on(host_)) {
    const auto bytes = static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]) * width;
    if (r == rank_ && bytes > 0) std::memcpy(out, block, bytes);
    block += bytes;
  }
}

Status ClusterTransport::barrier() {
  if (auto status = engines_.local->barrier(); !status.ok()) return status;
  if (index_ == 0) {
    if (auto status = engines_.lane->barrier(); !status.ok()) return status;
  }
  return engines_.local->barrier();
}

}  // namespace perseus::hierarchy
