// Implements the verbs over one communicator. All functions throw Error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "transport/xccl/communicator.h"
#include "transport/xccl/staging.h"

namespace perseus::xccl {

// The communicator and the staging memory of a call.
struct Context {
  Communicator& through;
  Staging& staging;

  Device& device() const { return through.device(); }
};

void allreduce(const Context& context, const Reduction& reduction, Pieces in, Pieces out);
void reduce_scatter(const Context& context, const Reduction& reduction, const void* in, void* out, Counts counts);

// See XcclTransport::supports().
Status supports(const Library& library, const Device& device, const Reduction& reduction);

void broadcast(const Context& context, Pieces buffers, int root);
void allgather(const Context& context, const void* in, void* out, Counts bytes);
void alltoall(const Context& context, const void* in, Counts send_bytes, void* out, Counts recv_bytes);
void barrier(const Context& context);

// Exchanges `bytes` bytes with every rank; `in` and `out` do not overlap.
void exchange_equal(const Context& context, const void* in, void* out, std::int64_t bytes);

}  // namespace perseus::xccl
