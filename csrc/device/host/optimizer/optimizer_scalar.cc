// The optimizer kernels for every processor: vectors of 16 bytes, which the compiler builds from basic instructions.
#include <cmath>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kLanes = 4;

PERSEUS_INLINE VectorOf<float, kLanes> square_root(VectorOf<float, kLanes> value) {
  for (int i = 0; i < kLanes; ++i) value[i] = std::sqrt(value[i]);
  return value;
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"

namespace perseus::host {
constexpr StepKernels kScalarStepKernels = make_step_kernels("scalar");
}  // namespace perseus::host
