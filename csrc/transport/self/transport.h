// The transport of a group with one rank. It is the smallest transport and the one to copy from.
#pragma once

#include <array>

#include "device/host/kernels.h"
#include "transport/transport.h"

namespace perseus::self {

class SelfTransport final : public Transport {
 public:
  std::string_view name() const override { return "self"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override {
    try {
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (in[i].count > 0) scale(reduction, in[i].data, out[i].data, in[i].count);
      }
    } catch (const Error& error) {
      return Status::from(error);
    }
    return {};
  }
  Status broadcast(Pieces, int) override { return {}; }
  Status allgather(const void* in, void* out, Counts bytes) override { return copy(in, out, bytes[0]); }
  Status alltoall(const void* in, Counts, void* out, Counts recv_bytes) override {
    return copy(in, out, recv_bytes[0]);
  }
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override {
    const Piece from{const_cast<void*>(in), counts[0]};
    const Piece to{out, counts[0]};
    return allreduce(reduction, {&from, 1}, {&to, 1});
  }
  Status barrier() override { return {}; }

 private:
  // Reduces one contribution; only the factors apply.
  static void scale(const Reduction& reduction, const void* in, void* out, std::int64_t count) {
    const std::array<const void*, 1> from = {in};
    const std::array<void*, 1> to = {out};
    host::reduce({.reduction = reduction, .from = from, .to = to, .count = count});
  }
  static Status copy(const void* in, void* out, std::int64_t bytes) {
    if (bytes > 0) host::copy(out, in, static_cast<std::size_t>(bytes), host::Store::cached);
    return {};
  }
};

}  // namespace perseus::self
