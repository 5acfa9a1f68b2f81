// The optimizer kernels for AVX-512.
#include <immintrin.h>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kLanes = 16;

PERSEUS_INLINE VectorOf<float, kLanes> square_root(VectorOf<float, kLanes> value) {
  return bits_as<VectorOf<float, 16>>(_mm512_maskz_sqrt_ps(0xffff, bits_as<__m512>(value)));
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"

namespace perseus::host {
constexpr StepKernels kAvx512StepKernels = make_step_kernels("avx512");
}  // namespace perseus::host
