// Executes the collectives of some ranks of one host through memory that all of them map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bootstrap/watch/liveness.h"
#include "device/host/kernels.h"
#include "transport/shm/group_view.h"
#include "transport/shm/member_header.h"
#include "transport/shm/run_cursor.h"
#include "transport/shm/waiter.h"
#include "transport/transport.h"

namespace perseus::shm {

// The transport over shared memory. Each member has one counter, its flag, and all members go through the same sequence
// of steps. A member that has seen all others reach step s knows that they have finished everything before s in program
// order. The reuse of memory relies only on this:
//  - descriptors and small buffers alternate, and each operation that uses one has a full sync;
//  - staging slots are written only after a full sync of the same operation, and then as pipeline() describes.
class ShmTransport final : public Transport {
 public:
  ShmTransport(std::shared_ptr<GroupView> view, Staging staging, Waiter waiter, const Liveness& liveness);

  std::string_view name() const override { return "shm"; }
  int rank() const override { return view_->rank(); }
  int size() const override { return view_->size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
  void abort(const Status& why) override;
  bool has_lent_memory() const override { return has_lent_memory_; }
  std::size_t chunk_bytes() const override { return most_chunk_; }
  void set_chunk_bytes(std::size_t bytes) override;

 private:
  // A run of a member's buffer, as mapped in this process.
  struct Run {
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::int64_t count = 0;
  };
  using Runs = std::vector<Run>;
  struct Share {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  // From this size on, the reader is not expected to find the written data in a cache.
  static constexpr std::uint64_t kLargeBytes = std::uint64_t{2} << 20;
  static host::Store store_for(std::uint64_t bytes) {
    return bytes >= kLargeBytes ? host::Store::streaming : host::Store::cached;
  }

  // Runs the body of a verb. An exception becomes the Status, and the group is unusable afterwards.
  template <class Body>
  Status as_status(const Body& body);
  Status fail(const Status& status);
  [[noreturn]] void throw_lost(int member) const;

  // Steps. All of these throw Error if the other members will never reach the step.
  void raise() { view_->header(rank()).flag.raise(++step_); }
  void wait(int member, std::uint32_t step);
  void wait_all(std::uint32_t step);
  void sync();

  // Runs `pack(c)`, which fills this member's slot c, and `consume(c)`, which reads slot c of all members, for each c
  // below `chunks`. Call sync() and stage() before it within the same operation. A member packs c + 1 only after all
  // have raised step c and therefore consumed c - 1, so two slots suffice.
  template <class Pack, class Consume>
  void pipeline(std::int64_t chunks, const Pack& pack, const Consume& consume);

  // Descriptors of the members' buffers that other members can reach. Valid until the next operation.
  BufferDescriptor& my_descriptor() { return view_->header(rank()).descriptors[descriptors_ % 2]; }
  const BufferDescriptor& descriptor_of(int member) const {
    return view_->header(member).descriptors[descriptors_ % 2];
  }
  // Publishes this member's descriptor and waits for those of all members.
  void exchange_descriptors();
  void next_descriptor();
  // Returns the address of a range that a peer has described, valid until next_descriptor(). Throws Error if the range
  // is not inside the peer's segment.
  std::byte* reach(int member, Place place, std::uint64_t bytes);
  void describe_pieces(Pieces in, Pieces out, std::size_t element_size);
  void describe_range(const void* data, std::uint64_t bytes);
  Runs runs_of(int member, std::size_t element_size, std::int64_t count);
  bool all_reachable() const;

  // Prepares the staging ring for a pipeline of `bytes` bytes per member. Returns the bytes of a chunk, which are the
  // same on all members.
  std::int64_t stage(std::uint64_t bytes);
  // The same if a slot has a part for each member. Returns the bytes of a part, for parts of `bytes` bytes in all.
  std::int64_t stage_parts(std::uint64_t bytes);
  std::byte* slot(int member, std::int64_t chunk) const;
  std::byte* result(int member, std::int64_t chunk) const;
  // Returns a member's part of `count` elements. Parts begin at multiples of `unit` elements.
  Share share_of(int member, std::int64_t count, std::int64_t unit) const;

  void reduce_small(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count);
  void reduce_in_arena(const Reduction& reduction, std::int64_t count);
  void reduce_in_pairs(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count);
  void reduce_in_slices(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count);
  struct Sections;
  void describe_sections(const Sections& sections);
  void exchange_staged(const Sections& sections);
  bool fetch_reachable(const Sections& sections);
  void scatter_from_arena(const Reduction& reduction, void* out, Counts counts);
  void scatter_staged(const Reduction& reduction, const std::byte* in, std::byte* out, Counts counts);

  std::shared_ptr<GroupView> view_;
  Staging staging_;
  Waiter waiter_;
  const Liveness& liveness_;
  std::uint32_t step_ = 0;
  std::uint32_t descriptors_ = 0;
  std::vector<std::uint64_t> seen_changes_;          // by member: of its external segments
  std::vector<std::shared_ptr<std::byte>> reached_;  // external memory that this operation uses
  std::uint32_t smalls_ = 0;
  bool all_arrived_ = false;     // all members have reached this operation
  std::size_t most_chunk_;       // the longest chunk
  std::size_t chunk_bytes_ = 0;  // of this operation
  std::size_t ring_begin_ = 0;   // offset of this operation's first chunk
  std::size_t ring_end_ = 0;     // end of this operation's last chunk
  Status failure_;
  bool has_lent_memory_ = false;  // at the time of the failure
};

template <class Body>
Status ShmTransport::as_status(const Body& body) {
  if (!failure_.ok()) return failure_;
  all_arrived_ = false;
  try {
    body();
    return {};
  } catch (const Error& error) {
    return fail(Status::from(error));
  } catch (const std::exception& error) {
    return fail({ErrorKind::unavailable, std::string("shared-memory transport: ") + error.what()});
  }
}

template <class Pack, class Consume>
void ShmTransport::pipeline(std::int64_t chunks, const Pack& pack, const Consume& consume) {
  const auto base = step_ + 1;
  for (std::int64_t c = 0; c < chunks; ++c) {
    pack(c);
    raise();
    wait_all(base + static_cast<std::uint32_t>(c));
    consume(c);
  }
}

// Returns true if two ranges of memory have a byte in common.
inline bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + static_cast<std::uintptr_t>(b_bytes) &&
         y < x + static_cast<std::uintptr_t>(a_bytes);
}

}  // namespace perseus::shm
