// A transport for ranks on different hosts that executes two allreduces at the same time over two transports.
#pragma once

#include <array>
#include <memory>

#include "transport/hierarchy/communication_thread.h"
#include "transport/transport.h"

namespace perseus::hierarchy {

class PairTransport final : public Transport {
 public:
  // Both transports span the same ranks. Collectives that do not overlap use the first.
  PairTransport(std::unique_ptr<Transport> first, std::unique_ptr<Transport> second)
      : transports_{std::move(first), std::move(second)} {}

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
  void abort(const Status& why) override {
    for (const auto& transport : transports_) transport->abort(why);
  }
  bool has_lent_memory() const override {
    return transports_[0]->has_lent_memory() || transports_[1]->has_lent_memory();
  }
  std::size_t chunk_bytes() const override { return first().chunk_bytes(); }
  void set_chunk_bytes(std::size_t bytes) override {
    for (const auto& transport : transports_) transport->set_chunk_bytes(bytes);
  }
  int streams() const override { return first().streams(); }
  void set_streams(int count) override {
    for (const auto& transport : transports_) transport->set_streams(count);
  }

 private:
  Transport& first() const { return *transports_[0]; }

  std::array<std::unique_ptr<Transport>, 2> transports_;
  std::array<std::unique_ptr<CommunicationThread>, 2>
      threads_;  // made for the first overlapping allreduces; destroyed first, because they use the transports
};

}  // namespace perseus::hierarchy
