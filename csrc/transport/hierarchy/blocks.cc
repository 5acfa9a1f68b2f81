// Verbs in which each rank has data of its own. The data of a host's ranks is one block, and each rail carries a slice
// of it.
#include <algorithm>
#include <cstring>
#include <functional>

#include "transport/hierarchy/staging.h"
#include "transport/hierarchy/transport.h"

namespace perseus::hierarchy {
namespace {

// Copies the ranks' bytes from `all`, where they are in the given order, to `out` in the order of the ranks.
void copy_in_rank_order(const std::vector<int>& order, Counts bytes, const std::byte* all, std::byte* out) {
  const auto offsets = offsets_of<std::size_t>(bytes);
  for (const int r : order) {
    const auto rank = static_cast<std::size_t>(r);
    const auto count = static_cast<std::size_t>(bytes[rank]);
    if (count > 0) std::memcpy(out + offsets[rank], all, count);
    all += count;
  }
}

bool overlaps(const std::byte* part, std::size_t bytes, const std::byte* whole, std::size_t whole_bytes) {
  const std::less<> before;
  return before(part, whole + whole_bytes) && before(whole, part + bytes);
}

}  // namespace

HierarchicalTransport::Share HierarchicalTransport::share_of(std::int64_t block, std::int64_t index,
                                                             std::int64_t number) {
  const auto units = block / kGrain;
  const auto end_of = [&](std::int64_t i) { return (units / number * i + std::min(i, units % number)) * kGrain; };
  const auto begin = end_of(index);
  return {begin, (index + 1 == number ? block : end_of(index + 1)) - begin};
}

// Computes the share of every host's block in a chunk, and the slice of each share on this rail, in the order of the
// rail's ranks.
void HierarchicalTransport::take_shares(Chunk& chunk, Counts blocks, std::int64_t number) const {
  chunk.shares.clear();
  for (const auto block : blocks) chunk.shares.push_back(share_of(block, chunk.index, number));
  chunk.counts.clear();
  for (const int host : rail_hosts_) {
    const auto count = chunk.shares[static_cast<std::size_t>(host)].count;
    chunk.counts.push_back(slice_counts(count)[static_cast<std::size_t>(index_)]);
  }
}

// Returns where the slices begin if they follow one another, by host, and then where the last one ends.
std::vector<std::size_t> HierarchicalTransport::rail_places(Counts counts) const {
  std::vector<std::size_t> places(static_cast<std::size_t>(layout_.host_count()) + 1, 0);
  std::size_t at = 0;
  for (std::size_t i = 0; i < rail_hosts_.size(); ++i) {
    places[static_cast<std::size_t>(rail_hosts_[i])] = at;
    at += static_cast<std::size_t>(counts[i]);
  }
  places.back() = at;
  return places;
}

// Frees staging memory that is too large to be kept until the next call. After a failure, MPI may still write to it.
void HierarchicalTransport::free_large() {
  for (auto* memory : {&whole_, &slice_}) {
    if (memory->capacity() > kMostKeptBytes) Memory().swap(*memory);
  }
}

Status HierarchicalTransport::allgather(const void* in, void* out, Counts bytes) {
  auto done = as_status([&]() -> Status {
    std::vector<int> order;  // group ranks in the order of the hosts' blocks
    for (const int host : leader_hosts_) {
      order.insert(order.end(), layout_.ranks_on(host).begin(), layout_.ranks_on(host).end());
    }
    const auto total = sum(bytes);
    const bool in_order = std::is_sorted(order.begin(), order.end());
    auto* all = in_order ? static_cast<std::byte*>(out) : resized(whole_, static_cast<std::size_t>(total));
    const auto* mine = static_cast<const std::byte*>(in);
    const auto status = total <= kSliceBytes * layout_.host_count() ? allgather_whole(mine, all, bytes)
                                                                    : allgather_slices(mine, all, bytes);
    if (status.ok() && !in_order) copy_in_rank_order(order, bytes, all, static_cast<std::byte*>(out));
    return status;
  });
  if (done.ok()) free_large();
  return done;
}

// Gathers the block within each host, exchanges blocks between leaders, and broadcasts all from the leaders.
Status HierarchicalTransport::allgather_whole(const std::byte* in, std::byte* all, Counts bytes) {
  std::vector<std::int64_t> local_bytes, host_bytes;
  for (const int rank : layout_.ranks_on(host_)) local_bytes.push_back(bytes[static_cast<std::size_t>(rank)]);
  const auto blocks = block_counts(bytes);
  for (const int host : leader_hosts_) host_bytes.push_back(blocks[static_cast<std::size_t>(host)]);
  // The block is staged before anything is written to `all`, because `in` may be a part of `all`.
  auto* block = resized(slice_, static_cast<std::size_t>(blocks[static_cast<std::size_t>(host_)]));
  if (auto status = transports_.local->allgather(in, block, local_bytes); !status.ok()) return status;
  if (index_ == 0) {
    if (auto status = transports_.rail->allgather(block, all, host_bytes); !status.ok()) return status;
  }
  const Piece piece{all, sum(blocks)};
  return transports_.local->broadcast({&piece, 1}, 0);
}

// Gathers the block within each host, exchanges the slices over the rails, and gathers the slices within each host.
Status HierarchicalTransport::allgather_slices(const std::byte* in, std::byte* all, Counts bytes) {
  const auto blocks = block_counts(bytes);
  const auto total = sum(blocks);
  const auto number = chunk_number(total, chunk_elements(static_cast<std::size_t>(total), 1));
  const auto own = static_cast<std::size_t>(host_), index = static_cast<std::size_t>(index_);
  std::vector<std::byte*> block(blocks.size());
  auto* next = all;
  for (const int host : leader_hosts_) {
    block[static_cast<std::size_t>(host)] = next;
    next += blocks[static_cast<std::size_t>(host)];
  }
  std::vector<std::int64_t> begins{0};  // where each local rank's bytes begin in the block
  for (const int rank : layout_.ranks_on(host_))
    begins.push_back(begins.back() + bytes[static_cast<std::size_t>(rank)]);
  const auto mine = static_cast<std::size_t>(begins[index + 1] - begins[index]);
  if (overlaps(in, mine, all, static_cast<std::size_t>(total))) {
    in = static_cast<const std::byte*>(std::memcpy(resized(slice_, mine), in, mine));
  }
  const auto before = [&](Chunk& chunk) {
    take_shares(chunk, blocks, number);
    resized(chunk.slice, rail_places(chunk.counts).back());
    const auto [begin, count] = chunk.shares[own];
    std::vector<std::int64_t> cuts;
    cuts.reserve(begins.size());
    for (const auto at : begins) cuts.push_back(std::clamp(at, begin, begin + count));
    std::vector<std::int64_t> counts;
    for (std::size_t r = 0; r + 1 < cuts.size(); ++r) counts.push_back(cuts[r + 1] - cuts[r]);
    return transports_.local->allgather(in + (cuts[index] - std::min(cuts[index], begins[index])), block[own] + begin,
                                        counts);
  };
  const auto across = [&](Chunk& chunk) {
    const auto [begin, count] = chunk.shares[own];
    const auto* slice = block[own] + begin + slice_begin(count, index_);
    return chunk.rail->allgather(slice, chunk.slice.data(), chunk.counts);
  };
  const auto after = [&](Chunk& chunk) -> Status {
    const auto places = rail_places(chunk.counts);
    for (std::size_t host = 0; host < blocks.size(); ++host) {
      if (host == own) continue;
      const auto [begin, count] = chunk.shares[host];
      auto status =
          transports_.local->allgather(chunk.slice.data() + places[host], block[host] + begin, slice_counts(count));
      if (!status.ok()) return status;
    }
    return {};
  };
  return in_chunks({total, 1, before, across, after});
}

Status HierarchicalTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  auto done = as_status([&]() -> Status {
    const auto total = sum(counts);
    const auto bytes = total * static_cast<std::int64_t>(size_of(reduction.dtype));
    if (bytes <= kSliceBytes * layout_.host_count()) return reduce_scatter_whole(reduction, in, out, counts);
    return reduce_scatter_slices(reduction, static_cast<const std::byte*>(in), out, counts);
  });
  if (done.ok()) free_large();
  return done;
}

// Cuts every host's block into one part per rail. The input is arranged by rail, so that a reduce-scatter within the
// host gives rail k its part of every host's block. A reduce-scatter across hosts gives each host its own part. The
// parts then form the block within the host.
Status HierarchicalTransport::reduce_scatter_whole(const Reduction& reduction, const void* in, void* out,
                                                   Counts counts) {
  const Levels levels(reduction, layout_.host_count());
  const auto width = size_of(reduction.dtype);
  const auto blocks = block_counts(counts);
  std::vector<std::int64_t> by_rail(local_size(), 0);
  for (const auto block : blocks) {
    const auto parts = slice_counts(block);
    std::transform(by_rail.begin(), by_rail.end(), parts.begin(), by_rail.begin(), std::plus<>());
  }
  const auto index = static_cast<std::size_t>(index_);
  const auto* arranged = arrange_by_rail(static_cast<const std::byte*>(in), counts, width);
  auto* partial = resized(slice_, static_cast<std::size_t>(by_rail[index]) * width);
  if (auto status = transports_.local->reduce_scatter(levels.local, arranged, partial, by_rail); !status.ok()) {
    return status;
  }
  const auto own_block = blocks[static_cast<std::size_t>(host_)];
  auto part_bytes = slice_counts(own_block);
  for (auto& bytes : part_bytes) bytes *= static_cast<std::int64_t>(width);
  Memory part(static_cast<std::size_t>(part_bytes[index]));
  if (has_rail()) {
    std::vector<std::int64_t> by_host;
    by_host.reserve(rail_hosts_.size());
    for (const int host : rail_hosts_) by_host.push_back(slice_counts(blocks[static_cast<std::size_t>(host)])[index]);
    auto status = transports_.rail->reduce_scatter(levels.cross, partial, part.data(), by_host);
    if (!status.ok()) return status;
  }
  auto* block = resized(whole_, static_cast<std::size_t>(own_block) * width);
  if (auto status = transports_.local->allgather(part.data(), block, part_bytes); !status.ok()) return status;
  copy_own(counts, width, block, out);
  return {};
}

// The same without rearranging the input: in every chunk, each host's share of its block is reduced separately.
Status HierarchicalTransport::reduce_scatter_slices(const Reduction& reduction, const std::byte* in, void* out,
                                                    Counts counts) {
  const Levels levels(reduction, layout_.host_count());
  const auto width = size_of(reduction.dtype);
  const auto blocks = block_counts(counts);
  const auto total = sum(blocks);
  const auto number = chunk_number(total, chunk_elements(static_cast<std::size_t>(total) * width, width));
  const auto own = static_cast<std::size_t>(host_), index = static_cast<std::size_t>(index_);
  const auto inputs = block_inputs(in, counts, width);
  auto* block = resized(whole_, static_cast<std::size_t>(blocks[own]) * width);
  const auto before = [&](Chunk& chunk) -> Status {
    take_shares(chunk, blocks, number);
    const auto places = rail_places(chunk.counts);
    auto* partial = resized(chunk.slice, places.back() * width);
    resized(chunk.part, static_cast<std::size_t>(slice_counts(chunk.shares[own].count)[index]) * width);
    for (std::size_t host = 0; host < blocks.size(); ++host) {
      const auto [begin, count] = chunk.shares[host];
      const Scattered input(inputs[host], width);
      const std::byte* source = input.contiguous() == nullptr ? nullptr : input.contiguous(begin);
      if (source == nullptr) {
        auto* packed = resized(chunk.packed, static_cast<std::size_t>(count) * width);
        input.pack(copy_of(reduction.dtype), begin, count, packed);
        source = packed;
      }
      auto status =
          transports_.local->reduce_scatter(levels.local, source, partial + places[host] * width, slice_counts(count));
      if (!status.ok()) return status;
    }
    return {};
  };
  const auto across = [&](Chunk& chunk) {
    return chunk.rail->reduce_scatter(levels.cross, chunk.slice.data(), chunk.part.data(), chunk.counts);
  };
  const auto after = [&](Chunk& chunk) {
    const auto [begin, count] = chunk.shares[own];
    auto bytes = slice_counts(count);
    for (auto& each : bytes) each *= static_cast<std::int64_t>(width);
    return transports_.local->allgather(chunk.part.data(), block + static_cast<std::size_t>(begin) * width, bytes);
  };
  if (auto status = in_chunks({total, width, before, across, after}); !status.ok()) return status;
  copy_own(counts, width, block, out);
  return {};
}

// Returns the pieces of every host's block in the input. Adjacent parts of a host's ranks form one piece.
std::vector<std::vector<Piece>> HierarchicalTransport::block_inputs(const std::byte* in, Counts counts,
                                                                    std::size_t width) const {
  const auto offsets = offsets_of<std::size_t>(counts);
  std::vector<std::vector<Piece>> inputs(static_cast<std::size_t>(layout_.host_count()));
  for (int host = 0; host < layout_.host_count(); ++host) {
    auto& pieces = inputs[static_cast<std::size_t>(host)];
    for (const int r : layout_.ranks_on(host)) {
      const auto rank = static_cast<std::size_t>(r);
      auto* data = const_cast<std::byte*>(in) + offsets[rank] * width;
      const auto* end = pieces.empty() ? nullptr
                                       : static_cast<const std::byte*>(pieces.back().data) +
                                             static_cast<std::size_t>(pieces.back().count) * width;
      if (end == data) {
        pieces.back().count += counts[rank];
      } else {
        pieces.push_back({data, counts[rank]});
      }
    }
  }
  return inputs;
}

// Returns the number of elements of all ranks of each host.
std::vector<std::int64_t> HierarchicalTransport::block_counts(Counts counts) const {
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(layout_.host_count()), 0);
  for (int r = 0; r < size(); ++r) {
    blocks[static_cast<std::size_t>(layout_.host_of(r))] += counts[static_cast<std::size_t>(r)];
  }
  return blocks;
}

// Copies the input into an order by rail, and within a rail by host.
const std::byte* HierarchicalTransport::arrange_by_rail(const std::byte* in, Counts counts, std::size_t width) {
  const auto offsets = offsets_of<std::size_t>(counts);
  const auto blocks = block_counts(counts);
  auto* base = resized(whole_, offsets.back() * width);
  auto* to = base;
  for (int rail = 0; rail < layout_.rail_count(); ++rail) {
    for (const int host : layout_.hosts_of_rail(rail)) {
      // The host's ranks as pieces of one block.
      std::vector<Piece> pieces;
      for (const int r : layout_.ranks_on(host)) {
        const auto rank = static_cast<std::size_t>(r);
        pieces.push_back({const_cast<std::byte*>(in) + offsets[rank] * width, counts[rank]});
      }
      const auto block = blocks[static_cast<std::size_t>(host)];
      const auto begin = slice_begin(block, rail), count = slice_begin(block, rail + 1) - begin;
      const auto bytes = static_cast<std::int64_t>(width);
      for (auto& piece : pieces) piece.count *= bytes;
      Scattered(pieces, 1).pack(copy_of(DType::uint8), begin * bytes, count * bytes, to);
      to += static_cast<std::size_t>(count) * width;
    }
  }
  return base;
}

void HierarchicalTransport::copy_own(Counts counts, std::size_t width, const std::byte* block, void* out) const {
  for (const int r : layout_.ranks_on(host_)) {
    const auto bytes = static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]) * width;
    if (r == rank_ && bytes > 0) std::memcpy(out, block, bytes);
    block += bytes;
  }
}

}  // namespace perseus::hierarchy
