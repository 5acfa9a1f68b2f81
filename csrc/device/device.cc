#include "device/device.h"

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace perseus {

std::int64_t packed_count(const Reduction& reduction, std::span<const Piece> pieces) {
  std::int64_t end = 0;
  for (const auto& piece : pieces) {
    if (piece.count > 0) end = aligned_count(end, size_of(reduction.wire_dtype)) + piece.count;
  }
  return end;
}

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
