// The optimizer kernels for 64-bit Arm.
#include <arm_neon.h>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kLanes = 4;

PERSEUS_INLINE VectorOf<float, kLanes> square_root(VectorOf<float, kLanes> value) {
  return bits_as<VectorOf<float, 4>>(vsqrtq_f32(bits_as<float32x4_t>(value)));
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"

namespace perseus::host {
constexpr StepKernels kNeonStepKernels = make_step_kernels("neon");
}  // namespace perseus::host
