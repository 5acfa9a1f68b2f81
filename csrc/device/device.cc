#include "device/device.h"

#include "base/error.h"
#include "device/cuda/device.h"

namespace perseus {

std::shared_ptr<Device> open_device(int number) { return cuda::CudaDevice::open(cuda::driver(), number); }

int device_count() {
  const auto& driver = cuda::driver();
  int count = 0;
  driver.check("cuDeviceGetCount", driver.device_count(&count));
  return count;
}

bool has_driver() {
  try {
    cuda::open_driver(cuda::kDriverLibrary);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace perseus
