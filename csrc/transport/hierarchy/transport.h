// Executes the collectives of a group on several hosts, by one transport inside each host and others between hosts.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport/hierarchy/communication_thread.h"
#include "transport/hierarchy/layout.h"
#include "transport/scattered.h"
#include "transport/transport.h"

namespace perseus::hierarchy {

// The transports of one rank.
struct Transports {
  std::unique_ptr<Transport> local;  // the ranks of this host
  std::unique_ptr<Transport> rail;   // this rank's rail across hosts; null beyond the last rail
  std::unique_ptr<Transport> all;    // every rank of the group
  // A second transport of this rail, for overlapping transfers; null beyond the last rail, and if two threads at once
  // are not faster.
  std::unique_ptr<Transport> second_rail = nullptr;
};

// The hierarchy transport. A reduction has three phases: a reduce-scatter within the host gives slice k to rail k, each
// rail reduces its slice across hosts, and an allgather within the host distributes the slices. The bytes between hosts
// are the least possible for any number of ranks per host. Large tensors are processed in chunks, so that transfers
// between hosts overlap with work in memory. Two chunks are in transfer at once, so that the network is not idle when
// one begins or ends. If hosts have different numbers of ranks, some ranks have no rail. 16-bit values are rounded once
// per level.
class HierarchicalTransport final : public Transport {
 public:
  // With `flat_allreduce`, allreduces use `transports.all`, as if every rank had a host of its own.
  HierarchicalTransport(const Layout& layout, int rank, Transports transports, bool flat_allreduce = false);

  std::string_view name() const override { return "hierarchy"; }
  int rank() const override { return rank_; }
  int size() const override { return layout_.size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status allreduce_each(std::span<const Allreduce> all, Observer& observer) override;
  bool overlaps_allreduces() const override { return !flat_allreduce_; }
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
  void abort(const Status& why) override { transports_.local->abort(why); }
  bool has_lent_memory() const override {
    const auto has_lent = [](const auto& transport) { return transport != nullptr && transport->has_lent_memory(); };
    return has_lent(transports_.local) || has_lent(transports_.rail) || has_lent(transports_.all) ||
           has_lent(transports_.second_rail);
  }
  std::size_t chunk_bytes() const override { return transports_.local->chunk_bytes(); }
  void set_chunk_bytes(std::size_t bytes) override { transports_.local->set_chunk_bytes(bytes); }
  int streams() const override { return transports_.all->streams(); }
  void set_streams(int count) override {
    transports_.all->set_streams(count);
    if (has_rail()) transports_.rail->set_streams(count);
    if (transports_.second_rail) transports_.second_rail->set_streams(count);
  }

 private:
  using Memory = LentVector<std::byte>;

  bool has_rail() const { return transports_.rail != nullptr; }
  std::size_t local_size() const { return layout_.ranks_on(host_).size(); }
  int rail_place(int host) const;  // the host's index in this rank's rail
  std::int64_t slice_begin(std::int64_t count, int rail) const;
  std::vector<std::int64_t> slice_counts(std::int64_t count) const;  // by local rank

  // The part of a block that belongs to one chunk. Every block is cut into as many parts as there are chunks.
  struct Share {
    std::int64_t begin = 0, count = 0;
  };
  // A chunk in progress. Its elements are contiguous in the caller's memory, or packed here.
  struct Chunk {
    std::size_t flow = 0;  // the flow of which this is chunk `index`
    std::int64_t index = 0, begin = 0, count = 0, job = -1;
    CommunicationThread* thread = nullptr;  // the thread that transfers the chunk over `rail`
    Transport* rail = nullptr;
    std::vector<std::int64_t> counts;  // elements of the slices by local rank, or of this rail's slices by host
    std::vector<Share> shares;         // by host; only for verbs with blocks
    Memory packed, slice, part;        // kept between calls
  };
  using Phase = std::function<Status(Chunk&)>;
  static constexpr std::int64_t kDepth = 2;  // number of chunks that are posted before the first wait

  // `count` elements of `width` bytes that are processed in chunks. For each chunk, `before` works within the host,
  // `across` between hosts, and `after` within the host.
  struct Flow {
    std::int64_t count = 0;
    std::size_t width = 1;
    Phase before, across, after;
  };
  // Iterates over the chunks of several flows, one flow after the other.
  class Cursor;
  struct Reducing;

  // Executes flows in chunks. `observer` may be null; it is not called for a flow without elements.
  Status in_chunks(std::span<const Flow> flows, Observer* observer = nullptr);
  Status in_chunks(const Flow& flow) { return in_chunks({&flow, 1}); }
  Status begin(Chunk& chunk, const Flow& flow, bool on_thread, Posted& posted);
  Flow flow_of(const Reducing& reducing);
  void choose_thread(Chunk& chunk, std::int64_t number);
  Status broadcast_whole(const Scattered& buffers, int root);
  Status broadcast_slices(const Scattered& buffers, int root);
  // Returns the most elements of `width` bytes in a chunk, for data of `bytes` bytes in all.
  static std::int64_t chunk_elements(std::size_t bytes, std::size_t width);
  static std::int64_t chunk_number(std::int64_t count, std::int64_t most);
  // Returns contiguous memory for the chunk's elements: the caller's memory, or the chunk's own.
  static std::byte* place_of(const Scattered& scattered, Chunk& chunk, std::size_t width);

  // Blocks: a block is the data of all ranks of one host. See blocks.cc.
  std::vector<std::int64_t> block_counts(Counts counts) const;
  static Share share_of(std::int64_t block, std::int64_t index, std::int64_t number);
  void take_shares(Chunk& chunk, Counts blocks, std::int64_t number) const;
  std::vector<std::size_t> rail_places(Counts counts) const;
  std::vector<std::vector<Piece>> block_inputs(const std::byte* in, Counts counts, std::size_t width) const;
  void free_large();
  Status allgather_whole(const std::byte* in, std::byte* all, Counts bytes);
  Status allgather_slices(const std::byte* in, std::byte* all, Counts bytes);
  Status reduce_scatter_whole(const Reduction& reduction, const void* in, void* out, Counts counts);
  Status reduce_scatter_slices(const Reduction& reduction, const std::byte* in, void* out, Counts counts);
  const std::byte* arrange_by_rail(const std::byte* in, Counts counts, std::size_t width);
  void copy_own(Counts counts, std::size_t width, const std::byte* block, void* out) const;

  Layout layout_;
  int rank_, host_, index_;
  bool flat_allreduce_;
  std::vector<int> rail_hosts_;    // the host of each rank of this rail
  std::vector<int> leader_hosts_;  // the host of each rank of rail 0
  Transports transports_;
  Memory whole_, slice_;                  // kept between calls, unless they are large
  std::array<Chunk, kDepth + 1> chunks_;  // the same
  // The threads of the rail and of the second rail, made for the first large request. Destroyed first, because they use
  // the transports.
  std::array<std::unique_ptr<CommunicationThread>, 2> threads_;
};

}  // namespace perseus::hierarchy
