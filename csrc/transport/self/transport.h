// The transport of a group with one rank. It is the smallest transport and the one to copy from.
#pragma once

#include "transport/transport.h"

namespace perseus::self {

class SelfTransport final : public Transport {
 public:
  std::string_view name() const override { return "self"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
};

}  // namespace perseus::self
