// Defines the interface of transports: the collective verbs of one group of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/reduce.h"
#include "base/shape.h"

namespace perseus {

using Pieces = std::span<const Piece>;
using Counts = std::span<const std::int64_t>;  // one per rank of the group

inline std::int64_t sum(Counts counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

// Returns where each rank's part begins, and then where the last one ends.
template <class Offset = std::int64_t>
std::vector<Offset> offsets_of(Counts counts) {
  std::vector<Offset> offsets(counts.size() + 1, 0);
  for (std::size_t r = 0; r < counts.size(); ++r) offsets[r + 1] = offsets[r] + static_cast<Offset>(counts[r]);
  return offsets;
}

// The arguments of one allreduce.
struct Allreduce {
  Reduction reduction;
  Pieces in, out;
};

// Receives the progress of allreduce_each(), on the thread that calls it.
class Observer {
 public:
  virtual ~Observer() = default;
  // The thread now works on allreduce `which`. The allreduces begin in their order; the thread may return to one.
  virtual void turns_to(std::size_t which) = 0;
  // The results of allreduce `which` are there, and its memory is no longer used. Called in their order.
  virtual void done(std::size_t which) = 0;
};

// The collective verbs of one group. All calls block and are collective over the group. Negotiation ensures that they
// come in the same order with matching arguments on every rank. One thread at a time calls. A failure is returned on
// every rank that notices it, and the group is unusable afterwards. A wait ends with the status of Liveness once a peer
// is lost.
// Results are bit-identical on all ranks and between runs. 16-bit floats are accumulated in float32.
// Zero counts and counts beyond 2^31 are allowed. `in` and `out` may be the same memory but must not overlap otherwise.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;

  // Reduces `in` into `out`. `in[i]` and `out[i]` have equally many elements; the pieces together are one logical
  // buffer.
  virtual Status allreduce(const Reduction& reduction, Pieces in, Pieces out) = 0;

  // Executes several allreduces, possibly several at the same time, with the same bits as one after the other. No `out`
  // overlaps the memory of another one. After a failure, those for which done() was not called have failed.
  virtual Status allreduce_each(std::span<const Allreduce> all, Observer& observer) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      observer.turns_to(i);
      if (auto status = allreduce(all[i].reduction, all[i].in, all[i].out); !status.ok()) return status;
      observer.done(i);
    }
    return {};
  }
  // Returns true if allreduce_each() executes several at the same time. All ranks get the same answer.
  virtual bool overlaps_allreduces() const { return false; }

  // Copies root's pieces to all ranks. `count` of a piece is in bytes here.
  virtual Status broadcast(Pieces buffers, int root) = 0;

  // Gathers the contributions of all ranks into `out`, by rank. Rank r contributes bytes[r] bytes.
  virtual Status allgather(const void* in, void* out, Counts bytes) = 0;

  // Sends send_bytes[r] bytes to rank r, from consecutive places in `in`, and receives recv_bytes[r] bytes from rank r
  // into consecutive places in `out`.
  virtual Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) = 0;

  // Reduces the sum(counts) elements of `in`; rank r gets its counts[r] elements of the result in `out`.
  virtual Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) = 0;

  virtual Status barrier() = 0;

  // Marks this rank as failed because of a failure outside of this transport, so that ranks that wait for it fail too.
  // If the transport shares nothing with them, they learn of the failure when this process ends.
  virtual void abort([[maybe_unused]] const Status& why) {}

  // Returns true after a failure if a peer or the library below may still use memory that was passed to a call. This
  // memory must not be freed or used for anything else any more.
  virtual bool has_lent_memory() const { return false; }

  // The bytes of a chunk in which private memory is pipelined; 0 if the transport has no such setting. All ranks change
  // it between the same two calls.
  virtual std::size_t chunk_bytes() const { return 0; }
  virtual void set_chunk_bytes([[maybe_unused]] std::size_t bytes) {}

  // The number of connections over which a transport between hosts spreads data. All ranks change it between the same
  // two calls. A larger number than the transport has is lowered to that.
  virtual int streams() const { return 1; }
  virtual void set_streams([[maybe_unused]] int count) {}
};

}  // namespace perseus
