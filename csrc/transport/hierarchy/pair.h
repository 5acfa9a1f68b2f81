// Ranks that have a host each: one engine connects them twice, so that it carries two allreduces at the same time.
#pragma once

#include <array>
#include <memory>

#include "transport/hierarchy/wire.h"
#include "transport/transport.h"

namespace perseus::hierarchy {

class PairTransport final : public Transport {
 public:
  // Of the same ranks. The first does whatever is alone.
  PairTransport(std::unique_ptr<Transport> first, std::unique_ptr<Transport> second)
      : engines_{std::move(first), std::move(second)} {}

  std::string_view name() const override { return first().name(); }
  int rank() const override { return first().rank(); }
  int size() const override { return first().size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override {
    return first().allreduce(reduction, in, out);
  }
  Status allreduce_each(std::span<const Allreduce> all, Observer& observer) override;
  bool overlaps_allreduces() const override { return true; }
  Status broadcast(Pieces buffers, int root) override { return first().broadcast(buffers, root); }
  Status allgather(const void* in, void* out, Counts bytes) override { return first().allgather(in, out, bytes); }
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override {
    return first().alltoall(in, send_bytes, out, recv_bytes);
  }
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override {
    return first().reduce_scatter(reduction, in, out, counts);
  }
  Status barrier() override { return first().barrier(); }
  void give_up(const Status& why) override {
    for (const auto& engine : engines_) engine->give_up(why);
  }
  std::size_t chunk_bytes() const override { return first().chunk_bytes(); }
  void set_chunk_bytes(std::size_t bytes) override {
    for (const auto& engine : engines_) engine->set_chunk_bytes(bytes);
  }
  int streams() const override { return first().streams(); }
  void set_streams(int count) override {
    for (const auto& engine : engines_) engine->set_streams(count);
  }

 private:
  Transport& first() const { return *engines_[0]; }

  std::array<std::unique_ptr<Transport>, 2> engines_;
  std::array<std::unique_ptr<Wire>, 2> wires_;  // once there are several; they go first, as they use the engines
};

}  // namespace perseus::hierarchy
