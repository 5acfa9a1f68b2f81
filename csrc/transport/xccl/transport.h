// Executes the collectives of a group over a communicator of a library shaped like NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/memory/lent_memory.h"
#include "base/wait/blocking.h"
#include "transport/device_transport.h"
#include "transport/fabric.h"
#include "transport/xccl/communicator.h"
#include "transport/xccl/staging.h"

namespace perseus::xccl {

// The communicator and the staging memory of a call.
struct Context {
  Communicator& through;
  Staging& staging;

  Device& device() const { return through.device(); }
};

// Steps of several verbs. Both throw Error.
// Gathers as Transport::allgather() does.
void gather(const Context& context, const void* in, void* out, Counts bytes);
// Exchanges `bytes` bytes with every rank; `in` and `out` do not overlap.
void exchange_equal(const Context& context, const void* in, void* out, std::int64_t bytes);

// If the library does not have a reduction, or computes it differently from what transport.h specifies, the ranks
// exchange the data over the library and reduce on the device, if the device can. If a library adds 16-bit floats in 16
// bits (Traits::adds_16_bits), they are scaled before the sum, so that an average does not overflow.
class XcclTransport final : public DeviceTransport {
 public:
  explicit XcclTransport(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)), staging_(communicator_->device()) {}
  ~XcclTransport() override {
    if (communicator_->has_abandoned_call()) staging_.abandon();
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
  void abort(const Status& why) override;
  bool has_lent_memory() const override { return communicator_->has_abandoned_call(); }

  bool carries(const Reduction& reduction) const override;
  Status check() override;
  std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) override;

  // Returns ok if the transport supports the reduction, else an error that says what to do. Call it before the ranks
  // agree on the reduction.
  Status supports(const Reduction& reduction) const;

 private:
  // Runs the body of a verb, which gets a Context and may throw. After a failure, the transport is unusable.
  template <class Body>
  Status as_status(const Body& body);

  std::shared_ptr<Communicator> communicator_;  // shared with registered memory
  Staging staging_;
  Status failure_;
};

template <class Body>
Status XcclTransport::as_status(const Body& body) {
  if (!failure_.ok()) return failure_;
  before_blocking();  // within the library
  const auto locked = communicator_->lock();
  try {
    const auto current = communicator_->device().use();
    communicator_->check();
    body(Context{*communicator_, staging_});
    communicator_->wait();
    staging_.trim();
    return {};
  } catch (const Error& error) {
    failure_ = Status::from(error);
  } catch (const std::bad_alloc&) {
    failure_ = {ErrorKind::unavailable,
                "not enough memory to stage a collective over " + communicator_->library().name};
  }
  communicator_->abort(failure_.text());
  if (communicator_->has_abandoned_call()) keep_lent_memory();
  return failure_;
}

// The library and the device of this rank for a new communicator.
struct Participant {
  std::shared_ptr<const Library> library;
  std::string why_not;  // if there is no library: what is missing and what to do
  std::shared_ptr<Device> device;
};

// Connects the ascending world ranks `members`. Collective over all ranks of `exchange`; `rank` is this rank's world
// rank. If a member has no library, has another version than the others, or cannot connect, all members throw the same
// Error(unavailable), which names it. Returns null on a rank that is no member.
std::unique_ptr<XcclTransport> connect(const Participant& participant, std::span<const int> members, int rank,
                                       const BootstrapAllgather& exchange, Liveness& liveness,
                                       const Options& options = {});

}  // namespace perseus::xccl
