// The kernels for every processor: vectors of 16 bytes, which the compiler builds from basic instructions.
#include <cmath>

#include "device/host/float16.h"
#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kBlock = 2;

// Not inlined, because many kernels use them and code size matters more than speed here.
template <class Halves>
__attribute__((noinline)) VectorOf<float, sizeof(Halves) / 2> widen_float16(Halves half) {
  return software_widen_float16<sizeof(Halves) / 2>(half);
}
template <class Floats>
__attribute__((noinline)) VectorOf<std::uint16_t, sizeof(Floats) / 4> narrow_float16(Floats value) {
  return software_narrow_float16<sizeof(Floats) / 4>(value);
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
  for (int i = 0; i < 4; ++i) value[i] = std::sqrt(value[i]);
  return value;
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"
#include "device/host/reduce_impl.h"

namespace perseus::host {
constexpr Kernels kScalarKernels = make_kernels("scalar");
constexpr StepKernels kScalarStepKernels = make_step_kernels("scalar");
}  // namespace perseus::host
