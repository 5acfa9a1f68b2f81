// The verbs of a group on several hosts, composed of an engine inside each host and one between hosts.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/hierarchy/layout.h"
#include "transport/transport.h"

namespace perseus::hierarchy {

struct Engines {
  std::unique_ptr<Transport> local;  // the ranks of this host
  std::unique_ptr<Transport> lane;   // this rank's lane across hosts; null beyond the last lane
  std::unique_ptr<Transport> all;    // every rank of the group
};

// Reductions go: within the host, so that lane k has slice k; across hosts, each lane its slice; within the host again.
// What crosses the wire is the least possible, whatever the ranks per host. Uneven hosts leave some ranks without a
// lane. Values of 16 bits are rounded once per level.
class ClusterTransport final : public Transport {
 public:
  ClusterTransport(const Layout& layout, int rank, Engines engines);

  std::string_view name() const override { return "hierarchy"; }
  int rank() const override { return rank_; }
  int size() const override { return layout_.size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
  void give_up(const Status& why) override { engines_.local->give_up(why); }
  std::size_t chunk_bytes() const override { return engines_.local->chunk_bytes(); }
  void set_chunk_bytes(std::size_t bytes) override { engines_.local->set_chunk_bytes(bytes); }

 private:
  using Memory = std::vector<std::byte>;

  bool has_lane() const { return engines_.lane != nullptr; }
  std::size_t local_size() const { return layout_.ranks_on(host_).size(); }
  int lane_place(int host) const;  // of this rank's lane
  std::int64_t slice_begin(std::int64_t count, int lane) const;
  std::vector<std::int64_t> slice_counts(std::int64_t count) const;  // by local rank

  Status allreduce_chunk(const Reduction& reduction, const void* in, void* out, std::int64_t count);
  Status broadcast_whole(void* data, std::int64_t bytes, int root);
  Status broadcast_slices(void* data, std::int64_t bytes, int root);
  std::vector<std::int64_t> block_counts(Counts counts) const;
  const std::byte* arrange_by_lane(const std::byte* in, Counts counts, std::size_t width);
  void copy_own(Counts counts, std::size_t width, const std::byte* block, void* out) const;

  Layout layout_;
  int rank_, host_, index_;
  std::vector<int> lane_hosts_;    // host of each rank of this lane
  std::vector<int> leader_hosts_;  // the same of lane 0
  Engines engines_;
  Memory whole_, slice_;  // kept between calls
};

}  // namespace perseus::hierarchy
