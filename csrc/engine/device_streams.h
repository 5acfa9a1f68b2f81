// An engine's part on an accelerator: its streams, what communicates on them, and the way over host memory.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "engine/execute.h"
#include "engine/registry.h"
#include "transport/device_transport.h"

namespace perseus {

// See make_device_transport; over the engine's ranks.
using DeviceTransports = std::function<std::unique_ptr<DeviceTransport>(
    const std::shared_ptr<Device>& device, const std::shared_ptr<const Stream>& stream,
    const BootstrapAllgather& exchange, std::string& why)>;

class DeviceStreams {
 public:
  // `host`: carries what no transport of the device does. `streams`: how many collectives may be under way at once.
  DeviceStreams(std::shared_ptr<Device> device, Transport& host, const std::vector<int>& world_ranks,
                const DeviceTransports& transports, int streams, Registry& registry);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  // As execute() in execute.h, for tensors on the device. Where they need not leave it, this only queues: see
  // OnDevice::done.
  Status execute(const std::vector<BatchItem>& tasks);

  // For the timeline.
  std::string_view name(const Request& request) const;

  // What has gone wrong with work that was queued before.
  Status check();

  // Whether something that was queued is not done.
  bool busy() const;

  // See Transport.
  void give_up(const Status& why);

 private:
  struct Link {
    std::shared_ptr<const Stream> stream;
    std::unique_ptr<DeviceTransport> transport;
    std::shared_ptr<DeviceEvent> last;  // of what was queued
  };

  void connect(const DeviceTransports& transports, int streams);
  Status run(const std::vector<BatchItem>& tasks);
  bool stays_on_device(const Request& request) const;
  Status queue(Link& link, const std::vector<BatchItem>& tasks);
  Status broadcast(Link& link, const std::vector<BatchItem>& tasks);
  Status gather(Link& link, WorkItem& work);
  Status stage(const std::vector<BatchItem>& tasks);
  void bring(const std::vector<BatchItem>& tasks, std::vector<std::shared_ptr<WorkItem>>& staged);
  void take_back(const std::vector<BatchItem>& tasks, const std::vector<std::shared_ptr<WorkItem>>& staged);
  std::byte* pinned(std::size_t bytes);
  void keep_pinned();
  void* zeros(Stream stream, std::size_t bytes);
  void keep_zeros();
  void wait_for_tensors(Stream stream, const std::vector<BatchItem>& tasks);
  void mark_done(Stream stream, const std::vector<BatchItem>& tasks);

  std::shared_ptr<Device> device_;
  Transport& host_;
  Registry& registry_;
  const std::vector<int>& world_ranks_;
  std::vector<Link> links_;
  std::size_t next_ = 0;  // link, in turn: the same on all ranks
  std::shared_ptr<const Stream> copies_;
  std::shared_ptr<void> pinned_;
  std::size_t pinned_bytes_ = 0;
  std::shared_ptr<DeviceEvent> last_;         // of what was queued
  std::vector<std::shared_ptr<void>> zeros_;  // of the batch under way
  // The same of earlier ones, until they are done: freeing memory waits for the device.
  std::deque<std::pair<std::shared_ptr<DeviceEvent>, std::vector<std::shared_ptr<void>>>> kept_zeros_;
  NanCheck unchecked_ = NanCheck::off;  // only what is in host memory is looked at
};

}  // namespace perseus
