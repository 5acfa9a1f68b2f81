// The kernels for 64-bit Arm with its float16 conversions. They use ordinary stores, because the processor detects long
// runs of them.
#include <arm_neon.h>

#include "device/host/float16.h"
#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kBlock = 4;

PERSEUS_INLINE VectorOf<float, 4> widen_float16(VectorOf<std::uint16_t, 4> half) {
  return bits_as<VectorOf<float, 4>>(vcvt_f32_f16(bits_as<float16x4_t>(half)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 4> narrow_float16(VectorOf<float, 4> value) {
  return bits_as<VectorOf<std::uint16_t, 4>>(vcvt_f16_f32(bits_as<float32x4_t>(value)));
}
// float64 is converted to float16 in half vectors.
PERSEUS_INLINE VectorOf<float, 2> widen_float16(VectorOf<std::uint16_t, 2> half) {
  return software_widen_float16<2>(half);
}
PERSEUS_INLINE VectorOf<std::uint16_t, 2> narrow_float16(VectorOf<float, 2> value) {
  return software_narrow_float16<2>(value);
}

template <class Halves>
PERSEUS_INLINE VectorOf<std::uint32_t, sizeof(Halves) / 2> widen_bits(Halves bits) {
  return __builtin_convertvector(bits, VectorOf<std::uint32_t, sizeof(Halves) / 2>);
}
template <class Words>
PERSEUS_INLINE VectorOf<std::uint16_t, sizeof(Words) / 4> narrow_bits(Words bits) {
  return __builtin_convertvector(bits, VectorOf<std::uint16_t, sizeof(Words) / 4>);
}

template <class V>
PERSEUS_INLINE void stream(char* to, V value) {
  store(to, value);
}
PERSEUS_INLINE void finish_streaming() {}

PERSEUS_INLINE VectorOf<float, 4> square_root(VectorOf<float, 4> value) {
  return bits_as<VectorOf<float, 4>>(vsqrtq_f32(bits_as<float32x4_t>(value)));
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"
#include "device/host/reduce_impl.h"

namespace perseus::host {
constexpr Kernels kNeonKernels = make_kernels("neon");
constexpr StepKernels kNeonStepKernels = make_step_kernels("neon");
}  // namespace perseus::host
