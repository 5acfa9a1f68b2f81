// Converts bfloat16 to and from float32 with rounding to nearest even; infinities and NaN are kept. It uses integer
// arithmetic, because the processors' own conversions (AVX512-BF16) treat subnormals as zero.
// The file of an instruction set must define widen_bits and narrow_bits (16-bit numbers to and from 32-bit ones).
#pragma once

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr std::uint32_t kBFloat16Bits = 0xffff0000U;

// Returns values whose upper half is the nearest bfloat16. The lower half is undefined. Not for NaN.
template <int lanes>
PERSEUS_INLINE VectorOf<std::uint32_t, lanes> nearest_bfloat16_number(VectorOf<float, lanes> value) {
  const auto bits = bits_as<VectorOf<std::uint32_t, lanes>>(value);
  return bits + 0x7fffU + ((bits >> 16) & 1U);
}

// The same, also for NaN.
template <int lanes>
PERSEUS_INLINE VectorOf<std::uint32_t, lanes> nearest_bfloat16(VectorOf<float, lanes> value) {
  const auto quiet = bits_as<VectorOf<std::uint32_t, lanes>>(value) | 0x00400000U;
  return value == value ? nearest_bfloat16_number<lanes>(value) : quiet;
}

template <int lanes>
PERSEUS_INLINE VectorOf<float, lanes> widen_bfloat16(VectorOf<std::uint16_t, lanes> value) {
  return bits_as<VectorOf<float, lanes>>(widen_bits(value) << 16);
}

template <int lanes>
PERSEUS_INLINE VectorOf<std::uint16_t, lanes> narrow_bfloat16(VectorOf<float, lanes> value) {
  return narrow_bits(nearest_bfloat16<lanes>(value) >> 16);
}

// Splits elements into two vectors of even and odd ones, which needs no shuffle.
template <int lanes>
PERSEUS_INLINE void widen_bfloat16_pairs(VectorOf<std::uint32_t, lanes> pairs, VectorOf<float, lanes>& even,
                                         VectorOf<float, lanes>& odd) {
  even = bits_as<VectorOf<float, lanes>>(pairs << 16);
  odd = bits_as<VectorOf<float, lanes>>(pairs & kBFloat16Bits);
}

// For values computed from bfloat16s: their NaNs have an empty lower half, which rounding does not change.
template <int lanes>
PERSEUS_INLINE VectorOf<std::uint32_t, lanes> narrow_bfloat16_pairs(VectorOf<float, lanes> even,
                                                                    VectorOf<float, lanes> odd) {
  return (nearest_bfloat16_number<lanes>(even) >> 16) | (nearest_bfloat16_number<lanes>(odd) & kBFloat16Bits);
}

}  // namespace
}  // namespace perseus::host
