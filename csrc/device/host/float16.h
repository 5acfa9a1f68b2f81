// Converts float16 to and from float32 without special instructions, with rounding to nearest even; infinities and NaN
// are kept. The bits are the same as by the processors' instructions; a signalling NaN becomes quiet.
#pragma once

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

template <int lanes>
PERSEUS_INLINE VectorOf<float, lanes> software_widen_float16(VectorOf<std::uint16_t, lanes> half) {
  using Bits = VectorOf<std::uint32_t, lanes>;
  using Floats = VectorOf<float, lanes>;
  const Bits wide = __builtin_convertvector(half, Bits);
  const Bits sign = (wide & 0x8000U) << 16;
  const Bits magnitude = (wide & 0x7fffU) << 13;
  const Bits normal = magnitude + (112U << 23);
  // A subnormal is its digits with the exponent of 2^-14, minus 2^-14. This is exact and never a subnormal float32.
  const Bits smallest = magnitude * 0U + (113U << 23);
  const Bits subnormal = bits_as<Bits>(bits_as<Floats>(magnitude + smallest) - bits_as<Floats>(smallest));
  const Bits infinite = magnitude | 0x7f800000U;
  const Bits nan = infinite | 0x00400000U;
  Bits result = magnitude < (1U << 23) ? subnormal : normal;
  result = magnitude >= (31U << 23) ? infinite : result;
  result = magnitude > (31U << 23) ? nan : result;
  return bits_as<Floats>(result | sign);
}

template <int lanes>
PERSEUS_INLINE VectorOf<std::uint16_t, lanes> software_narrow_float16(VectorOf<float, lanes> value) {
  using Bits = VectorOf<std::uint32_t, lanes>;
  using Floats = VectorOf<float, lanes>;
  const Bits bits = bits_as<Bits>(value);
  const Bits sign = (bits >> 16) & 0x8000U;
  const Bits magnitude = bits & 0x7fffffffU;
  // Adds half of the last kept digit, minus one if that digit is even. A carry correctly moves into the exponent.
  const Bits normal = (magnitude - (112U << 23) + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13;
  // Adding 0.5 rounds the digits of a float16 subnormal into the last digits of a float32.
  const Bits half = magnitude * 0U + (126U << 23);
  const Bits subnormal = bits_as<Bits>(bits_as<Floats>(magnitude) + bits_as<Floats>(half)) - half;
  const Bits nan = ((magnitude >> 13) & 0x03ffU) | 0x7e00U;
  Bits result = magnitude < (113U << 23) ? subnormal : normal;
  result = magnitude >= 0x477ff000U ? (magnitude * 0U + 0x7c00U) : result;  // 65520 and above
  result = magnitude > 0x7f800000U ? nan : result;
  return __builtin_convertvector(result | sign, VectorOf<std::uint16_t, lanes>);
}

}  // namespace
}  // namespace perseus::host
