// The kernels for AVX-512 of Skylake servers (F, BW, VL, DQ).
#include <immintrin.h>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kVectorBytes = 64;
constexpr int kBlock = 8;

// Uses the masked forms, because GCC 12 warns about uninitialized values in the others.
PERSEUS_INLINE VectorOf<float, 16> widen_float16(VectorOf<std::uint16_t, 16> half) {
  return bits_as<VectorOf<float, 16>>(_mm512_maskz_cvtph_ps(0xffff, bits_as<__m256i>(half)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 16> narrow_float16(VectorOf<float, 16> value) {
  const __m512 floats = bits_as<__m512>(value);
  return bits_as<VectorOf<std::uint16_t, 16>>(_mm512_maskz_cvtps_ph(0xffff, floats, _MM_FROUND_TO_NEAREST_INT));
}
// float64 is converted to float16 in half vectors.
PERSEUS_INLINE VectorOf<float, 8> widen_float16(VectorOf<std::uint16_t, 8> half) {
  return bits_as<VectorOf<float, 8>>(_mm256_cvtph_ps(bits_as<__m128i>(half)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 8> narrow_float16(VectorOf<float, 8> value) {
  return bits_as<VectorOf<std::uint16_t, 8>>(_mm256_cvtps_ph(bits_as<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}

PERSEUS_INLINE VectorOf<std::uint32_t, 16> widen_bits(VectorOf<std::uint16_t, 16> bits) {
  return bits_as<VectorOf<std::uint32_t, 16>>(_mm512_maskz_cvtepu16_epi32(0xffff, bits_as<__m256i>(bits)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 16> narrow_bits(VectorOf<std::uint32_t, 16> bits) {
  return bits_as<VectorOf<std::uint16_t, 16>>(_mm512_maskz_cvtepi32_epi16(0xffff, bits_as<__m512i>(bits)));
}
PERSEUS_INLINE VectorOf<std::uint32_t, 8> widen_bits(VectorOf<std::uint16_t, 8> bits) {
  return bits_as<VectorOf<std::uint32_t, 8>>(_mm256_cvtepu16_epi32(bits_as<__m128i>(bits)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 8> narrow_bits(VectorOf<std::uint32_t, 8> bits) {
  return bits_as<VectorOf<std::uint16_t, 8>>(_mm256_maskz_cvtepi32_epi16(0xff, bits_as<__m256i>(bits)));
}

template <class V>
PERSEUS_INLINE void stream(char* to, V value) {
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits_as<__m512i>(value));
  } else if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits_as<__m256i>(value));
  } else {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits_as<__m128i>(value));
  }
}
PERSEUS_INLINE void finish_streaming() { _mm_sfence(); }

PERSEUS_INLINE VectorOf<float, 16> square_root(VectorOf<float, 16> value) {
  return bits_as<VectorOf<float, 16>>(_mm512_maskz_sqrt_ps(0xffff, bits_as<__m512>(value)));
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"
#include "device/host/reduce_impl.h"

namespace perseus::host {
constexpr Kernels kAvx512Kernels = make_kernels("avx512");
constexpr StepKernels kAvx512StepKernels = make_step_kernels("avx512");
}  // namespace perseus::host
