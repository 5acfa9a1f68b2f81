// The collective verbs of some ranks of one host, through memory that all of them map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bootstrap/liveness.h"
#include "device/host/kernels.h"
#include "transport/shm/membership.h"
#include "transport/shm/seat.h"
#include "transport/shm/waiter.h"
#include "transport/shm/walk.h"
#include "transport/transport.h"

namespace perseus::shm {

// How the members stay in step. Each has one counter, its flag, that it raises as it goes along; all go through the
// same sequence of steps. Who has seen all others reach step s knows that they are done with whatever came before s in
// program order. Memory is reused on this knowledge alone:
//  - an offer and a small buffer alternate, and there is a full sync in each operation that uses one;
//  - staging slots are written only after a full sync of the same operation, and then as the pipelines say.
class Group final : public Transport {
 public:
  Group(std::shared_ptr<Membership> membership, Staging staging, Waiter waiter, const Liveness& liveness);

  std::string_view name() const override { return "shm"; }
  int rank() const override { return membership_->rank(); }
  int size() const override { return membership_->size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
  void give_up(const Status& why) override;
  std::size_t chunk_bytes() const override { return most_chunk_; }
  void set_chunk_bytes(std::size_t bytes) override;

 private:
  // A run of a member's buffer, mapped here.
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

  // From so many bytes on, what is written is not expected to be found in a cache by its reader.
  static constexpr std::uint64_t kLargeBytes = std::uint64_t{2} << 20;
  static host::Store store_for(std::uint64_t bytes) {
    return bytes >= kLargeBytes ? host::Store::streaming : host::Store::cached;
  }

  // Runs a verb's body; what it throws becomes the Status, and the group is over.
  template <class Body>
  Status guarded(const Body& body);
  Status fail(const Status& status);
  [[noreturn]] void throw_lost(int member) const;

  // Steps. All throw Error once the others will never come.
  void raise() { membership_->seat(rank()).flag.raise(++step_); }
  void wait(int member, std::uint32_t step);
  void wait_all(std::uint32_t step);
  void sync();

  // `pack(c)` fills this member's slot c, `consume(c)` reads everybody's, for c below `chunks`. Needs a sync and
  // stage() before it within the same operation. Packing c + 1, which may begin while c is consumed, a member has seen
  // all raise c, who then have consumed c - 1: two slots.
  template <class Pack, class Consume>
  void pipeline(std::int64_t chunks, const Pack& pack, const Consume& consume);

  // Offers: the members' buffers that others can reach. Valid until the next operation.
  Offer& my_offer() { return membership_->seat(rank()).offers[offers_ % 2]; }
  const Offer& offer_of(int member) const { return membership_->seat(member).offers[offers_ % 2]; }
  void next_offer() { ++offers_; }
  // Where a peer's offered range is mapped here. Throws Error when it is not inside the peer's segment.
  std::byte* reach(int member, std::uint64_t offset, std::uint64_t bytes) const;
  void offer_pieces(Pieces in, Pieces out, std::size_t element_size);
  void offer_range(const void* data, std::uint64_t bytes);
  Runs runs_of(int member, std::size_t element_size, std::int64_t count) const;
  bool all_reachable() const;

  // Prepares the ring for a pipeline of so many bytes per member and returns the bytes of a chunk, alike on all
  // members.
  std::int64_t stage(std::uint64_t bytes);
  // The same where a slot has a part for each member: the bytes of a part, for parts that hold `bytes` in all.
  std::int64_t stage_parts(std::uint64_t bytes);
  std::byte* slot(int member, std::int64_t chunk) const;
  std::byte* result(int member, std::int64_t chunk) const;
  // Member's part of `count` elements; parts begin at multiples of `unit` elements.
  Share share_of(int member, std::int64_t count, std::int64_t unit) const;

  void reduce_small(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count);
  void reduce_in_arena(const Reduction& reduction, std::int64_t count);
  void reduce_in_pairs(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count);
  void reduce_in_slices(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count);
  struct Parcels;
  void offer_parcels(const Parcels& parcels);
  void exchange_staged(const Parcels& parcels);
  bool fetch_reachable(const Parcels& parcels);
  void scatter_from_arena(const Reduction& reduction, void* out, Counts counts);
  void scatter_staged(const Reduction& reduction, const std::byte* in, std::byte* out, Counts counts);

  std::shared_ptr<Membership> membership_;
  Staging staging_;
  Waiter waiter_;
  const Liveness& liveness_;
  std::uint32_t step_ = 0;
  std::uint32_t offers_ = 0;
  std::uint32_t smalls_ = 0;
  bool all_came_ = false;        // to this operation
  std::size_t most_chunk_;       // a chunk is never longer
  std::size_t chunk_bytes_ = 0;  // in this operation
  std::size_t ring_begin_ = 0;   // where its first chunk lies
  std::size_t ring_end_ = 0;     // where its last one ends
  Status failure_;
};

template <class Body>
Status Group::guarded(const Body& body) {
  if (!failure_.ok()) return failure_;
  all_came_ = false;
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
void Group::pipeline(std::int64_t chunks, const Pack& pack, const Consume& consume) {
  const auto base = step_ + 1;
  for (std::int64_t c = 0; c < chunks; ++c) {
    pack(c);
    raise();
    wait_all(base + static_cast<std::uint32_t>(c));
    consume(c);
  }
}

}  // namespace perseus::shm
