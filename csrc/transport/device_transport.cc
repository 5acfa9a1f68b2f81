#include "transport/device_transport.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/xccl/libraries/library.h"
#include "transport/xccl/transport.h"

namespace perseus {

namespace {

// Adapts a device stream to the interface that NCCL-like libraries need.
class OnStream final : public xccl::Device {
 public:
  OnStream(std::shared_ptr<perseus::Device> device, std::shared_ptr<const Stream> stream, bool wants_plain_sums)
      : device_(std::move(device)), stream_(std::move(stream)), wants_plain_sums_(wants_plain_sums) {}

  std::string name() const override { return device_->description(); }
  void* stream() const override { return reinterpret_cast<void*>(*stream_); }
  void activate() override { device_->activate(); }

  void* allocate(std::size_t bytes) override {
    auto memory = device_->allocate_on(stream_, bytes);
    auto* address = memory->data();
    memory_[address] = std::move(memory);
    return address;
  }
  // The memory is freed in the order of the stream.
  void release(void* memory) override { memory_.erase(memory); }

  void copy(void* to, const void* from, std::size_t bytes) override { device_->copy(*stream_, to, from, bytes); }
  std::int64_t packed_count(const Reduction& reduction, Pieces pieces) const override {
    return perseus::packed_count(reduction, pieces);
  }
  bool aligns_pieces() const override { return true; }
  void pack(const Reduction& reduction, Pieces from, void* to) override {
    device_->pack(*stream_, reduction, from, to);
  }
  void unpack(const Reduction& reduction, const void* from, Pieces to) override {
    device_->unpack(*stream_, reduction, from, to);
  }
  bool reduces() const override { return false; }
  void reduce(const Reduction&, std::span<const void* const>, void*, std::int64_t) override {
    throw Error(ErrorKind::unavailable,
                name() + " cannot reduce contributions itself; use a reduction that NCCL supports");
  }
  bool wants_plain_sums() const override { return wants_plain_sums_; }
  bool done() override {
    if (!last_) last_ = device_->record(*stream_);
    if (!device_->is_done(*last_)) return false;
    last_.reset();
    return true;
  }

 private:
  std::shared_ptr<perseus::Device> device_;
  std::shared_ptr<const Stream> stream_;
  bool wants_plain_sums_;
  std::map<void*, std::shared_ptr<DeviceMemory>> memory_;
  std::shared_ptr<DeviceEvent> last_;  // the event for which done() waits
};

class NcclTransport final : public DeviceTransport {
 public:
  // `kernels`: the devices of all ranks have kernels.
  NcclTransport(std::shared_ptr<Device> device, std::shared_ptr<const Stream> stream,
                std::unique_ptr<xccl::XcclTransport> nccl, bool kernels)
      : device_(std::move(device)), stream_(std::move(stream)), nccl_(std::move(nccl)), kernels_(kernels) {}
  ~NcclTransport() override {
    std::shared_ptr<void> current;
    try {
      current = device_->use();
    } catch (const Error&) {
      // The device has failed; the NCCL communicator must be destroyed even so.
    }
    nccl_.reset();
  }

  std::string_view name() const override { return nccl_->name(); }
  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }

  // NCCL itself scales floating types if several ranks sum them.
  bool carries(const Reduction& reduction) const override {
    const bool nccl_scales = size() > 1 && reduction.op == ReduceOp::sum && is_floating(reduction.wire_dtype);
    const bool needs_kernels =
        reduction.wire_dtype != reduction.dtype || (!reduction.scale.is_identity() && !nccl_scales);
    return (kernels_ || !needs_kernels) && nccl_->supports(reduction).ok();
  }

  Status check() override {
    const std::scoped_lock lock(*calls_);
    return nccl_->check();
  }
  std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) override {
    const auto current = use();
    auto registered = nccl_->register_memory(memory, bytes);
    if (!registered) return nullptr;
    return {registered.get(), [held = registered, device = device_, stream = stream_, calls = calls_](void*) mutable {
              try {
                device->synchronize(*device->record(*stream));
              } catch (const Error&) {
                // A failed device executes no work.
              }
              const std::scoped_lock lock(*calls);
              held.reset();
            }};
  }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override {
    const auto current = use();
    return nccl_->allreduce(reduction, in, out);
  }
  Status broadcast(Pieces buffers, int root) override {
    const auto current = use();
    return nccl_->broadcast(buffers, root);
  }
  Status allgather(const void* in, void* out, Counts bytes) override {
    const auto current = use();
    return nccl_->allgather(in, out, bytes);
  }
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override {
    const auto current = use();
    return nccl_->alltoall(in, send_bytes, out, recv_bytes);
  }
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override {
    const auto current = use();
    return nccl_->reduce_scatter(reduction, in, out, counts);
  }
  Status barrier() override {
    const auto current = use();
    return nccl_->barrier();
  }
  void abort(const Status& why) override { nccl_->abort(why); }

 private:
  // Any thread may release memory, but NCCL allows one call per communicator at a time.
  struct InUse {
    std::unique_lock<std::mutex> lock;
    std::shared_ptr<void> current;
  };
  InUse use() { return {std::unique_lock(*calls_), device_->use()}; }

  std::shared_ptr<Device> device_;
  std::shared_ptr<const Stream> stream_;
  std::unique_ptr<xccl::XcclTransport> nccl_;
  bool kernels_;
  std::shared_ptr<std::mutex> calls_ = std::make_shared<std::mutex>();
};

}  // namespace

std::shared_ptr<xccl::AbortGroup> make_abort_group(Liveness& liveness) { return xccl::AbortGroup::make(liveness); }

std::unique_ptr<DeviceTransport> make_device_transport(const std::shared_ptr<Device>& device,
                                                       const std::shared_ptr<const Stream>& stream,
                                                       const DeviceGroup& group, std::string& why) {
  const auto current = device->use();
  std::shared_ptr<const xccl::Library> library;
  std::string missing;
  try {
    library = group.open_library ? group.open_library() : xccl::open_nccl({group.library, group.python_prefix});
  } catch (const Error& error) {
    missing = error.what();
  }
  // 'k' means with kernels, 'm' means with kernels and a switch that adds, and '-' means without kernels; then follows
  // the reason if there is no library.
  const auto* const mine = !device->has_kernels() ? "-" : device->has_multicast() ? "m" : "k";
  const auto notes = group.exchange(mine + missing);
  const auto lacks = std::find_if(notes.begin(), notes.end(), [](const auto& note) { return note.size() > 1; });
  if (lacks != notes.end()) {
    const auto place = static_cast<std::size_t>(lacks - notes.begin());
    why = "rank " + std::to_string(group.members[place]) + ": " + lacks->substr(1);
    return nullptr;
  }
  const auto all_have = [&](std::string_view kinds) {
    return std::all_of(notes.begin(), notes.end(),
                       [&](const auto& note) { return !note.empty() && kinds.find(note.front()) != kinds.npos; });
  };
  const bool kernels = all_have("km"), plain_sums = all_have("m");
  xccl::Options options;
  options.start_timeout = group.start_timeout;
  options.queue_only = true;
  options.abort_group = group.abort_group;
  auto nccl = xccl::connect({library, "", std::make_shared<OnStream>(device, stream, plain_sums)}, group.members,
                            group.rank, group.exchange, group.liveness, options);
  return std::make_unique<NcclTransport>(device, stream, std::move(nccl), kernels);
}

}  // namespace perseus
