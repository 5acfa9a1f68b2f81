// The optimizer kernels for AVX2.
#include <immintrin.h>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kLanes = 8;

PERSEUS_INLINE VectorOf<float, kLanes> square_root(VectorOf<float, kLanes> value) {
  return bits_as<VectorOf<float, 8>>(_mm256_sqrt_ps(bits_as<__m256>(value)));
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"

namespace perseus::host {
constexpr StepKernels kAvx2StepKernels = make_step_kernels("avx2");
}  // namespace perseus::host
