// bfloat16 to and from float32: round to nearest even, infinities and NaN kept. In integer arithmetic everywhere: the
// processors' own converts (AVX512-BF16) take subnormals for zero.
// Wants widen_bits and narrow_bits (16-bit numbers to and from 32-bit ones) from the file of an instruction set.
#pragma once

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

constexpr std::uint32_t kBFloat16Bits = 0xffff0000U;

// The upper half is the nearest bfloat16; the lower half is left over. Not for NaN.
template <int lanes>
PERSEUS_INLINE VectorOf<std::uint32_t, lanes> nearest_bfloat16_number(VectorOf<float, lanes> value) {
  const auto bits = bits_as<VectorOf<std::uint32_t, lanes>>(value);
  return bits + 0x7fffU + ((bits >> 16) & 1U);
}

// The same for NaN too.
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

// Neighbours in memory side by side in two vectors, which takes no shuffle: the even ones and the odd ones.
template <int lanes>
PERSEUS_INLINE void widen_bfloat16_pairs(VectorOf<std::uint32_t, lanes> pairs, VectorOf<float, lanes>& even,
                                         VectorOf<float, lanes>& odd) {
  even = bits_as<VectorOf<float, lanes>>(pairs << 16);
  odd = bits_as<VectorOf<float, lanes>>(pairs & kBFloat16Bits);
}

// For what was computed from bfloat16s: a NaN among it has an empty lower half, which rounding leaves alone.
template <int lanes>
PERSEUS_INLINE VectorOf<std::uint32_t, lanes> narrow_bfloat16_pairs(VectorOf<float, lanes> even,
                                                                    VectorOf<float, lanes> odd) {
  return (nearest_bfloat16_number<lanes>(even) >> 16) | (nearest_bfloat16_number<lanes>(odd) & kBFloat16Bits);
}

}  // namespace
}  // namespace perseus::host
