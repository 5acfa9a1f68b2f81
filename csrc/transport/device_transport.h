// A transport of tensors on an accelerator: its calls queue work on one stream and return.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "bootstrap/liveness.h"
#include "device/device.h"
#include "transport/fabric.h"
#include "transport/transport.h"

namespace perseus {

namespace xccl {
struct Library;
}

class DeviceTransport : public Transport {
 public:
  // Whether it can reduce so; the same answer on all ranks.
  virtual bool carries(const Reduction& reduction) const = 0;

  // What has gone wrong with work that was queued; all of it ends then.
  virtual Status check() = 0;

  // Device memory that is reduced where it lies, as long as the result lives. Local to this rank; empty where that is
  // no gain.
  virtual std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) = 0;
};

// The ranks that connect, ascending in the world, and how they meet.
struct DeviceGroup {
  std::span<const int> members;
  int rank = 0;  // this one's in the world
  Exchange exchange;
  Liveness& liveness;
  std::chrono::milliseconds start_timeout{60'000};
  std::string library;        // the path of NCCL; empty: found by itself
  std::string python_prefix;  // sys.prefix: wheels put libraries below it
  // In place of looking for it: tests fill the library's table themselves. Throws Error(unavailable).
  std::function<std::shared_ptr<const xccl::Library>()> open_library = {};
};

// The device's own transport on a stream. Collective over the members. Null where a rank has none, and `why` says which
// and why, the same on all. Throws Error, the same on all ranks, where they have it and it fails.
std::unique_ptr<DeviceTransport> make_device_transport(const std::shared_ptr<Device>& device,
                                                       const std::shared_ptr<const Stream>& stream,
                                                       const DeviceGroup& group, std::string& why);

}  // namespace perseus
