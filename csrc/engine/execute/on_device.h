// State of a request whose tensors are on an accelerator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace perseus {

struct OnDevice {
  std::shared_ptr<Device> device;
  Stream stream = 0;                   // the caller's current stream at the submission
  std::shared_ptr<DeviceEvent> ready;  // the tensors are as the caller left them
  // Recorded when the results are there and the tensors are no longer used. Set before the completion is done; null if
  // nothing was queued.
  std::shared_ptr<DeviceEvent> done;
  std::vector<std::shared_ptr<DeviceMemory>> results;  // made for it on the device
  bool arrived = false;  // the caller's streams wait for the work, so their later operations see the results
};

// Returns the state for a request whose tensors are ready once `stream` has executed what is queued on it now. Throws
// Error(invalid_argument) if the stream is being captured.
std::shared_ptr<OnDevice> on_device(std::shared_ptr<Device> device, Stream stream, const std::string& label);

// Makes `stream` wait for the work without blocking the host thread. The stream of the submission waits as well, so
// memory that its allocator had freed there may be used again. Throws Error, and Error(invalid_argument) if either
// stream is being captured; neither stream waits then.
void arrive(OnDevice& work, Stream stream);

// Makes `stream` alone wait for the work. The stream of the submission goes on, so the tensors count as in use until
// the device has finished the work. Throws Error.
void arrive_alone(OnDevice& work, Stream stream);

// Makes what was queued on `stream` after arrive() a part of the work: later calls of arrive() wait for it too, and so
// does the stream of the submission. Throws Error.
void extend(OnDevice& work, Stream stream);

// Does the same after arrive_alone(): the stream of the submission goes on.
void extend_alone(OnDevice& work, Stream stream);

// Returns true if the device has finished the work, which must have been queued.
bool is_over(const OnDevice& work);

// Returns true if the device may still use the tensors when the caller's streams reach their next operation.
bool in_use(const OnDevice& work);

}  // namespace perseus
