// An engine's part on an accelerator: its streams, the transports on them, and staging through host memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "engine/execute/execute.h"
#include "engine/session/registry.h"
#include "transport/device_transport.h"

namespace perseus {

// Makes a device transport over the engine's ranks; see make_device_transport.
using DeviceTransports = std::function<std::unique_ptr<DeviceTransport>(
    const std::shared_ptr<Device>& device, const std::shared_ptr<const Stream>& stream,
    const BootstrapAllgather& exchange, std::string& why)>;

class DeviceStreams {
 public:
  // `host` executes what no transport of the device supports. `streams` is the number of collectives that may overlap.
  // `limit` is how long a collective may be queued until the device is done with it; 0: without end.
  DeviceStreams(std::shared_ptr<Device> device, Transport& host, const std::vector<int>& world_ranks,
                const DeviceTransports& transports, int streams, std::chrono::milliseconds limit, Registry& registry);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  // Executes a batch whose tensors are on the device, as execute() in execute.h. If a device transport executes it,
  // this only queues the work: see OnDevice::done.
  Status execute(const std::vector<BatchItem>& tasks);

  // Returns the name of the transport that will execute the request, for the timeline.
  std::string_view name(const Request& request) const;

  // Returns the error of work that was queued before, if any: a failure, or that it is not done within the limit.
  Status check();

  // Returns true if queued work is not done yet.
  bool busy() const;

  // See Transport.
  void abort(const Status& why);

 private:
  struct Queued {
    std::string label;
    std::shared_ptr<DeviceEvent> done;
    std::chrono::steady_clock::time_point since;
  };
  struct Link {
    std::shared_ptr<const Stream> stream;
    std::unique_ptr<DeviceTransport> transport;
    std::shared_ptr<DeviceEvent> last;  // recorded after the last queued work
    std::deque<Queued> queued;          // with a limit, what may not be done, in the order of the stream
  };

  void connect(const DeviceTransports& transports, int streams);
  void await_end(const Link& link);
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
  void* zeros(const Link& link, std::size_t bytes);
  void wait_for_tensors(Stream stream, const std::vector<BatchItem>& tasks);
  void mark_done(Stream stream, const std::vector<BatchItem>& tasks);

  std::shared_ptr<Device> device_;
  Transport& host_;
  Registry& registry_;
  const std::vector<int>& world_ranks_;
  std::chrono::milliseconds limit_;
  std::vector<Link> links_;
  std::size_t next_ = 0;  // the next link in turn, the same on all ranks
  std::shared_ptr<const Stream> copies_;
  std::shared_ptr<void> pinned_;
  std::size_t pinned_bytes_ = 0;
  std::shared_ptr<DeviceEvent> last_;  // recorded after the last queued work
  // Zeros that the batch in progress uses. They are freed in the order of the stream.
  std::vector<std::shared_ptr<DeviceMemory>> zeros_;
  NanCheck unchecked_ = NanCheck::off;  // only values in host memory are checked
};

}  // namespace perseus
