// A transport on a device. On an accelerator, its calls queue work on one device stream and return.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "bootstrap/watch/liveness.h"
#include "device/device.h"
#include "transport/fabric.h"
#include "transport/transport.h"

namespace perseus {

namespace xccl {
struct Library;
class AbortGroup;
}  // namespace xccl

class DeviceTransport : public Transport {
 public:
  // Returns true if the transport supports the reduction. All ranks get the same answer.
  virtual bool carries(const Reduction& reduction) const = 0;

  // Returns the failure of queued work, if any. All queued work then ends.
  virtual Status check() = 0;

  // Registers device memory, which is then reduced in place. The memory stays registered until the returned handle is
  // released. Local to this rank. Returns null if registration has no benefit.
  virtual std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) = 0;
};

// Returns the group of all device transports of one rank, which are aborted together when a rank is lost or one of the
// transports fails.
std::shared_ptr<xccl::AbortGroup> make_abort_group(Liveness& liveness);

// The ranks that connect, as ascending world ranks, and their means to exchange bytes.
struct DeviceGroup {
  std::span<const int> members;
  int rank = 0;  // this rank's world rank
  BootstrapAllgather exchange;
  Liveness& liveness;
  std::chrono::milliseconds start_timeout{60'000};
  std::string library;                                 // the path of NCCL; empty: search for it
  std::string python_prefix;                           // sys.prefix: wheels put libraries below it
  std::shared_ptr<xccl::AbortGroup> abort_group = {};  // null: the transport is aborted alone
  // Replaces the search for the library; tests provide a table of functions. Throws Error(unavailable).
  std::function<std::shared_ptr<const xccl::Library>()> open_library = {};
};

// Makes the vendor library's transport on a device stream. Collective over the members. Returns null on all ranks if a
// rank has no such library; `why` then names the rank and the reason. Throws the same Error on all ranks if the library
// fails.
std::unique_ptr<DeviceTransport> make_device_transport(const std::shared_ptr<Device>& device,
                                                       const std::shared_ptr<const Stream>& stream,
                                                       const DeviceGroup& group, std::string& why);

}  // namespace perseus
