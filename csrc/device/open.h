// Opens the accelerators of this machine.
#pragma once

#include <memory>

#include "device/device.h"

namespace perseus {

// Opens a device; `number` is the framework's number. Throws Error that says what to do if there is no such device or
// no driver.
std::shared_ptr<Device> open_device(int number);

// Returns true if an accelerator's driver is installed. Does not start it, so that forked processes can use it.
bool has_driver();

}  // namespace perseus
