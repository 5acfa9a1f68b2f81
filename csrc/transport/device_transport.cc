#include "transport/device_transport.h"

#include <algorithm>
#include <map>
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
  // `kernels`: the devices of all ranks have kernels.
  OnStream(std::shared_ptr<perseus::Device> device, std::shared_ptr<const Stream> stream, bool kernels,
           bool wants_plain_sums)
      : device_(std::move(device)),
        stream_(std::move(stream)),
        kernels_(kernels),
        wants_plain_sums_(wants_plain_sums) {}

  std::string name() const override { return device_->description(); }
  void* stream() const override { return reinterpret_cast<void*>(*stream_); }
  void activate() override { device_->activate(); }
  std::shared_ptr<void> use() override { return device_->use(); }

  void* allocate(std::size_t bytes) override {
    auto memory = device_->allocate_on(stream_, bytes);
    auto* address = memory->data();
    memory_[address] = std::move(memory);
    return address;
  }
  // The memory is freed in the order of the stream.
  void release(void* memory) override { memory_.erase(memory); }

  void copy(void* to, const void* from, std::size_t bytes) override { device_->copy(*stream_, to, from, bytes); }
  bool has_kernels() const override { return kernels_; }
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
  void finish() override {
    try {
      device_->synchronize(*device_->record(*stream_));
    } catch (const Error&) {
      // A failed device executes no work.
    }
  }

 private:
  std::shared_ptr<perseus::Device> device_;
  std::shared_ptr<const Stream> stream_;
  bool kernels_, wants_plain_sums_;
  std::map<void*, std::shared_ptr<DeviceMemory>> memory_;
  std::shared_ptr<DeviceEvent> last_;  // the event for which done() waits
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
  return xccl::connect({library, "", std::make_shared<OnStream>(device, stream, kernels, plain_sums)}, group.members,
                       group.rank, group.exchange, group.liveness, options);
}

}  // namespace perseus
