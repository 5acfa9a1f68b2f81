// The verbs that only move bytes, over one communicator. All throw Error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "transport/xccl/communicator.h"
#include "transport/xccl/staging.h"

namespace perseus::xccl {

// Where to stage and through what to go.
struct Way {
  Communicator& through;
  Staging& staging;

  Device& device() const { return through.device(); }
};

void broadcast(const Way& way, Pieces buffers, int root);
void allgather(const Way& way, const void* in, void* out, Counts bytes);
void alltoall(const Way& way, const void* in, Counts send_bytes, void* out, Counts recv_bytes);
void barrier(const Way& way);

// `bytes` to and from every rank; `in` and `out` are apart.
void exchange_equal(const Way& way, const void* in, void* out, std::int64_t bytes);

}  // namespace perseus::xccl
