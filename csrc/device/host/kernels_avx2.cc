// The kernels for AVX2 with the float16 conversions of F16C.
#include <immintrin.h>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr int kVectorBytes = 32;
constexpr int kBlock = 4;

PERSEUS_INLINE VectorOf<float, 8> widen_float16(VectorOf<std::uint16_t, 8> half) {
  return bits_as<VectorOf<float, 8>>(_mm256_cvtph_ps(bits_as<__m128i>(half)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 8> narrow_float16(VectorOf<float, 8> value) {
  return bits_as<VectorOf<std::uint16_t, 8>>(_mm256_cvtps_ph(bits_as<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}

// float64 is converted to float16 in half vectors.
PERSEUS_INLINE VectorOf<float, 4> widen_float16(VectorOf<std::uint16_t, 4> half) {
  return bits_as<VectorOf<float, 4>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bits_as<long long>(half))));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 4> narrow_float16(VectorOf<float, 4> value) {
  const __m128i half = _mm_cvtps_ph(bits_as<__m128>(value), _MM_FROUND_TO_NEAREST_INT);
  return bits_as<VectorOf<std::uint16_t, 4>>(_mm_cvtsi128_si64(half));
}

PERSEUS_INLINE VectorOf<std::uint32_t, 8> widen_bits(VectorOf<std::uint16_t, 8> bits) {
  return bits_as<VectorOf<std::uint32_t, 8>>(_mm256_cvtepu16_epi32(bits_as<__m128i>(bits)));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 8> narrow_bits(VectorOf<std::uint32_t, 8> bits) {
  const __m256i words = bits_as<__m256i>(bits);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return bits_as<VectorOf<std::uint16_t, 8>>(packed);
}
PERSEUS_INLINE VectorOf<std::uint32_t, 4> widen_bits(VectorOf<std::uint16_t, 4> bits) {
  return bits_as<VectorOf<std::uint32_t, 4>>(_mm_cvtepu16_epi32(_mm_cvtsi64_si128(bits_as<long long>(bits))));
}
PERSEUS_INLINE VectorOf<std::uint16_t, 4> narrow_bits(VectorOf<std::uint32_t, 4> bits) {
  const __m128i words = bits_as<__m128i>(bits);
  return bits_as<VectorOf<std::uint16_t, 4>>(_mm_cvtsi128_si64(_mm_packus_epi32(words, words)));
}

template <class V>
PERSEUS_INLINE void stream(char* to, V value) {
  if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits_as<__m256i>(value));
  } else if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits_as<__m128i>(value));
  } else {
    _mm_stream_si64(reinterpret_cast<long long*>(to), bits_as<long long>(value));
  }
}
PERSEUS_INLINE void finish_streaming() { _mm_sfence(); }

PERSEUS_INLINE VectorOf<float, 8> square_root(VectorOf<float, 8> value) {
  return bits_as<VectorOf<float, 8>>(_mm256_sqrt_ps(bits_as<__m256>(value)));
}

}  // namespace
}  // namespace perseus::host

#include "device/host/optimizer/optimizer_impl.h"
#include "device/host/reduce_impl.h"

namespace perseus::host {
constexpr Kernels kAvx2Kernels = make_kernels("avx2");
constexpr StepKernels kAvx2StepKernels = make_step_kernels("avx2");
}  // namespace perseus::host
