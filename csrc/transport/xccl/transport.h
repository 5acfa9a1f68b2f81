// The collective verbs over a communicator of a library shaped like NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "transport/fabric.h"
#include "transport/transport.h"
#include "transport/xccl/communicator.h"
#include "transport/xccl/moves.h"
#include "transport/xccl/staging.h"

namespace perseus::xccl {

// What a library cannot add in the way transport.h promises (and what it does not know at all) the ranks exchange
// through it and add themselves, where the device can. Reductions of 16-bit floats that a library adds in 16 bits
// (Traits::adds_16_bits) are scaled before they are added, so that an average does not overflow.
class XcclTransport final : public Transport {
 public:
  explicit XcclTransport(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)), staging_(communicator_->device()) {}
  ~XcclTransport() override {
    if (communicator_->left_behind()) staging_.leave();
  }

  std::string_view name() const override { return communicator_->library().name; }
  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
  void give_up(const Status& why) override;

  // Whether there is a way to reduce this here; else a text that says what to do. To be asked before ranks agree.
  Status supports(const Reduction& reduction) const;

  // What has gone wrong with work that was queued, which is given up then. Cheap enough for a wait loop.
  Status check();

  // Memory that the library may use without a copy of its own, as long as the result lives. Local: no rank waits for
  // another. Empty where the library has no such thing.
  std::shared_ptr<void> register_memory(void* memory, std::size_t bytes);

 private:
  template <class Work>
  Status guarded(const Work& work);
  Way way() { return {*communicator_, staging_}; }

  std::shared_ptr<Communicator> communicator_;  // shared with registered memory
  Staging staging_;
  Status failure_;
};

// What this rank brings to a new communicator.
struct Joining {
  std::shared_ptr<const Library> library;
  std::string why_not;  // where there is no library: what is missing, and what to do
  std::shared_ptr<Device> device;
};

// Collective over all ranks of `exchange`, of whom the ascending world ranks `members` connect; `rank` is this one's,
// and a member's. Where a member has no library, or another version than the rest, or cannot connect, all members throw
// the same Error(unavailable), which names it. Null for a rank that is no member.
std::unique_ptr<XcclTransport> connect(const Joining& joining, std::span<const int> members, int rank,
                                       const Exchange& exchange, Liveness& liveness, const Options& options = {});

}  // namespace perseus::xccl
