// What is known of a request whose tensors lie on an accelerator, beyond their addresses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace perseus {

struct OnDevice {
  std::shared_ptr<Device> device;
  Stream stream = 0;                   // on which the caller worked when it asked
  std::shared_ptr<DeviceEvent> ready;  // the tensors are as the caller left them
  // The results are there, and the tensors no longer used. Set before the completion is done; null where nothing was
  // begun.
  std::shared_ptr<DeviceEvent> done;
  std::vector<std::shared_ptr<DeviceMemory>> results;  // made for it on the device
  bool arrived = false;  // the caller's streams wait for it: whatever they do with the tensors comes after
};

// The request's tensors as the stream has left them. Throws Error(invalid_argument) where the stream is being captured.
std::shared_ptr<OnDevice> on_device(std::shared_ptr<Device> device, Stream stream, const std::string& label);

// What `stream` is given from now on comes after the work; the caller is not held up. The stream that asked waits as
// well: memory that was free to be used there before is so again. Throws Error.
void arrive(OnDevice& work, Stream stream);

// What `stream` was given after arrive() is a part of the work: whoever arrives later waits for it too, and so does the
// stream that asked. Throws Error.
void extend(OnDevice& work, Stream stream);

// Whether the device is done with the work, which has been queued.
bool is_over(const OnDevice& work);

// Whether the device may use the tensors at the time when the caller's streams get to work on them.
bool in_use(const OnDevice& work);

}  // namespace perseus
