// The accelerators of this machine, whoever made them.
#pragma once

#include <memory>

#include "device/device.h"

namespace perseus {

// `number` as the framework counts. Throws Error with what to do where there is no such device, or no driver.
std::shared_ptr<Device> open_device(int number);

// Whether an accelerator's driver is here. It is not started: processes forked afterwards can use it.
bool has_driver();

}  // namespace perseus
