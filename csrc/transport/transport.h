// The collective verbs of one group of ranks on one engine, and what that engine can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "base/reduce.h"
#include "base/shape.h"

namespace perseus {

using Pieces = std::span<const Piece>;
using Counts = std::span<const std::int64_t>;  // one per rank of the group

// The arguments of one allreduce.
struct Allreduce {
  Reduction reduction;
  Pieces in, out;
};

// What allreduce_each() tells, on the thread that calls it.
class Observer {
 public:
  virtual ~Observer() = default;
  // The thread works for that one from now on. They are begun in their order, and it may come back to one.
  virtual void turns_to(std::size_t which) = 0;
  // Its results are there, and its memory is not used any more. In their order.
  virtual void done(std::size_t which) = 0;
};

// All calls block, are collective over the group, come in the same order with matching arguments on every
// rank (negotiation sees to that), from one thread at a time. A failure is returned on every rank that notices it,
// and the group is unusable afterwards. A wait ends with Liveness's status once a peer is lost.
// Results are bit-identical on all ranks and between runs. 16-bit floats are accumulated in float32.
// Zero counts, and counts beyond 2^31, are fine. `in` and `out` may be the same memory, never overlap otherwise.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;

  // Elements in `in[i]` and `out[i]` are equal in number; the pieces together are one logical buffer.
  virtual Status allreduce(const Reduction& reduction, Pieces in, Pieces out) = 0;

  // The same bits as one after the other, though some may be under way at the same time: no result lies where another
  // reads or writes. After a failure those that were not done are lost.
  virtual Status allreduce_each(std::span<const Allreduce> all, Observer& observer) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      observer.turns_to(i);
      if (auto status = allreduce(all[i].reduction, all[i].in, all[i].out); !status.ok()) return status;
      observer.done(i);
    }
    return {};
  }
  // Whether some are; the same answer on all ranks.
  virtual bool overlaps_allreduces() const { return false; }

  // Root's pieces reach everybody's; bytes only, `count` is in bytes here.
  virtual Status broadcast(Pieces buffers, int root) = 0;

  // Rank r contributes bytes[r] bytes; `out` holds all, by rank.
  virtual Status allgather(const void* in, void* out, Counts bytes) = 0;

  // send_bytes[r] goes to rank r, from consecutive places in `in`; likewise received.
  virtual Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) = 0;

  // `in` has sum(counts) elements; rank r gets the reduction of its counts[r] of them in `out`.
  virtual Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) = 0;

  virtual Status barrier() = 0;

  // This rank cannot go on: a failure outside of this transport, which is to reach those that wait for this rank.
  // Where nothing of it is shared with them they learn of it when this process ends.
  virtual void give_up([[maybe_unused]] const Status& why) {}

  // The pieces in which private memory is pipelined; 0 where there are none to choose. Changed by all ranks between the
  // same two calls.
  virtual std::size_t chunk_bytes() const { return 0; }
  virtual void set_chunk_bytes([[maybe_unused]] std::size_t bytes) {}

  // Connections that data is spread over, for a transport between hosts. Changed as the pieces are; it takes as many as
  // it has.
  virtual int streams() const { return 1; }
  virtual void set_streams([[maybe_unused]] int count) {}
};

}  // namespace perseus
