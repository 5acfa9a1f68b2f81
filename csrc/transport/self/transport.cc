#include "transport/self/transport.h"

#include <array>

#include "device/host/kernels.h"

namespace perseus::self {

namespace {

// Reduces one contribution; only the factors apply.
void scale(const Reduction& reduction, const void* in, void* out, std::int64_t count) {
  const std::array<const void*, 1> from = {in};
  const std::array<void*, 1> to = {out};
  host::reduce({.reduction = reduction, .from = from, .to = to, .count = count});
}

Status copy(const void* in, void* out, std::int64_t bytes) {
  if (bytes > 0) host::copy(out, in, static_cast<std::size_t>(bytes), host::Store::cached);
  return {};
}

}  // namespace

Status SelfTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  try {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (in[i].count > 0) scale(reduction, in[i].data, out[i].data, in[i].count);
    }
  } catch (const Error& error) {
    return Status::from(error);
  }
  return {};
}

Status SelfTransport::broadcast(Pieces, int) { return {}; }

Status SelfTransport::allgather(const void* in, void* out, Counts bytes) { return copy(in, out, bytes[0]); }

Status SelfTransport::alltoall(const void* in, Counts, void* out, Counts recv_bytes) {
  return copy(in, out, recv_bytes[0]);
}

Status SelfTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  const Piece from{const_cast<void*>(in), counts[0]};
  const Piece to{out, counts[0]};
  return allreduce(reduction, {&from, 1}, {&to, 1});
}

Status SelfTransport::barrier() { return {}; }

}  // namespace perseus::self
