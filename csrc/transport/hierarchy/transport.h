// The verbs of a group on several hosts, composed of an engine inside each host and one between hosts.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport/hierarchy/layout.h"
#include "transport/hierarchy/wire.h"
#include "transport/scattered.h"
#include "transport/transport.h"

namespace perseus::hierarchy {

struct Engines {
  std::unique_ptr<Transport> local;  // the ranks of this host
  std::unique_ptr<Transport> lane;   // this rank's lane across hosts; null beyond the last lane
  std::unique_ptr<Transport> all;    // every rank of the group
  // The lane once more, for what it carries at the same time; null beyond the last lane, and where threads cannot.
  std::unique_ptr<Transport> beside = nullptr;
};

// Reductions go: within the host, so that lane k has slice k; across hosts, each lane its slice; within the host again.
// What crosses the wire is the least possible, whatever the ranks per host. Much of it goes in chunks, so that the wire
// is busy with some while memory is with others: two are on it at once, so that it is not idle where one begins or
// ends. Uneven hosts leave some ranks without a lane. Values of 16 bits are rounded once per level.
class ClusterTransport final : public Transport {
 public:
  // `flat_allreduce`: as if every rank had a host of its own.
  ClusterTransport(const Layout& layout, int rank, Engines engines, bool flat_allreduce = false);

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
  void give_up(const Status& why) override { engines_.local->give_up(why); }
  std::size_t chunk_bytes() const override { return engines_.local->chunk_bytes(); }
  void set_chunk_bytes(std::size_t bytes) override { engines_.local->set_chunk_bytes(bytes); }
  int streams() const override { return engines_.all->streams(); }
  void set_streams(int count) override {
    engines_.all->set_streams(count);
    if (has_lane()) engines_.lane->set_streams(count);
    if (engines_.beside) engines_.beside->set_streams(count);
  }

 private:
  using Memory = std::vector<std::byte>;

  bool has_lane() const { return engines_.lane != nullptr; }
  std::size_t local_size() const { return layout_.ranks_on(host_).size(); }
  int lane_place(int host) const;  // of this rank's lane
  std::int64_t slice_begin(std::int64_t count, int lane) const;
  std::vector<std::int64_t> slice_counts(std::int64_t count) const;  // by local rank

  // What of a block belongs to one chunk, where every block is cut into as many parts as there are chunks.
  struct Share {
    std::int64_t begin = 0, count = 0;
  };
  // One chunk under way: its elements are contiguous in the caller's memory, or packed here.
  struct Chunk {
    std::size_t flow = 0;  // which of those that were given, of which it is chunk `index`
    std::int64_t index = 0, begin = 0, count = 0, job = -1;
    Wire* wire = nullptr;  // that carries it, by
    Transport* lane = nullptr;
    std::vector<std::int64_t> counts;  // of the slices: by local rank, or of this lane's by host
    std::vector<Share> shares;         // by host, of the verbs with blocks
    Memory packed, slice, part;        // kept between calls
  };
  using Phase = std::function<Status(Chunk&)>;
  static constexpr std::int64_t kDepth = 2;  // chunks that are posted before the first is waited for

  // `count` elements of `width` bytes that go in chunks: each `before` within the host, `across` between hosts, `after`
  // within the host.
  struct Flow {
    std::int64_t count = 0;
    std::size_t width = 1;
    Phase before, across, after;
  };
  // Through the chunks of some flows, one flow after the other.
  class Cursor;
  struct Reducing;

  // `observer` may be null. It is not told of a flow without elements.
  Status in_chunks(std::span<const Flow> flows, Observer* observer = nullptr);
  Status in_chunks(const Flow& flow) { return in_chunks({&flow, 1}); }
  Status begin(Chunk& chunk, const Flow& flow, bool aside, Posted& posted);
  Flow flow_of(const Reducing& reducing);
  void choose_wire(Chunk& chunk, std::int64_t number);
  Status broadcast_whole(const Scattered& buffers, int root);
  Status broadcast_slices(const Scattered& buffers, int root);
  // Of elements of `width` bytes at most in a chunk of what has so many bytes in all.
  static std::int64_t chunk_elements(std::size_t bytes, std::size_t width);
  static std::int64_t chunk_number(std::int64_t count, std::int64_t most);
  // The chunk's elements in one place: the caller's memory, or the chunk's own.
  static std::byte* place_of(const Scattered& scattered, Chunk& chunk, std::size_t width);

  // Blocks: what the ranks of each host have together. In blocks.cc.
  std::vector<std::int64_t> block_counts(Counts counts) const;
  static Share share_of(std::int64_t block, std::int64_t index, std::int64_t number);
  void take_shares(Chunk& chunk, Counts blocks, std::int64_t number) const;
  std::vector<std::size_t> lane_places(Counts counts) const;
  std::vector<std::vector<Piece>> block_inputs(const std::byte* in, Counts counts, std::size_t width) const;
  Status allgather_whole(const std::byte* in, std::byte* all, Counts bytes);
  Status allgather_slices(const std::byte* in, std::byte* all, Counts bytes);
  Status reduce_scatter_whole(const Reduction& reduction, const void* in, void* out, Counts counts);
  Status reduce_scatter_slices(const Reduction& reduction, const std::byte* in, void* out, Counts counts);
  const std::byte* arrange_by_lane(const std::byte* in, Counts counts, std::size_t width);
  void copy_own(Counts counts, std::size_t width, const std::byte* block, void* out) const;

  Layout layout_;
  int rank_, host_, index_;
  bool flat_allreduce_;
  std::vector<int> lane_hosts_;    // host of each rank of this lane
  std::vector<int> leader_hosts_;  // the same of lane 0
  Engines engines_;
  Memory whole_, slice_;                  // kept between calls
  std::array<Chunk, kDepth + 1> chunks_;  // the same
  // Of the lane, and of what is beside it: once there is much to carry. They go first, as they use the engines.
  std::array<std::unique_ptr<Wire>, 2> wires_;
};

}  // namespace perseus::hierarchy
