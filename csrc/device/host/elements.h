// Defines the types in which elements of each dtype are stored and computed.
// The file of an instruction set must define widen_float16 and narrow_float16 on vectors, and what bfloat16.h needs.
#pragma once

#include "device/host/bfloat16.h"
#include "device/host/lanes.h"

namespace perseus::host {
namespace {

struct Float16 {};
struct BFloat16 {};
struct Bool {};

// `Memory` is the type in memory and `Compute` the type of the arithmetic. If `Compute` is more precise, `nearest`
// rounds a value to the precision of `Memory`.
template <class T>
struct Element {
  using Memory = T;
  using Compute = T;
  template <class To, int lanes>
  PERSEUS_INLINE static VectorOf<To, lanes> widen(VectorOf<T, lanes> value) {
    return __builtin_convertvector(value, VectorOf<To, lanes>);
  }
  template <class From, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> narrow(VectorOf<From, lanes> value) {
    return __builtin_convertvector(value, VectorOf<T, lanes>);
  }
};

template <>
struct Element<Float16> {
  using Memory = std::uint16_t;
  using Compute = float;
  template <class To, int lanes>
  PERSEUS_INLINE static VectorOf<float, lanes> widen(VectorOf<Memory, lanes> value) {
    return widen_float16(value);
  }
  template <class From, int lanes>
  PERSEUS_INLINE static VectorOf<Memory, lanes> narrow(VectorOf<float, lanes> value) {
    return narrow_float16(value);
  }
  template <int lanes>
  PERSEUS_INLINE static VectorOf<float, lanes> nearest(VectorOf<float, lanes> value) {
    return widen_float16(narrow_float16(value));
  }
};

template <>
struct Element<BFloat16> {
  using Memory = std::uint16_t;
  using Compute = float;
  template <class To, int lanes>
  PERSEUS_INLINE static VectorOf<float, lanes> widen(VectorOf<Memory, lanes> value) {
    return widen_bfloat16<lanes>(value);
  }
  template <class From, int lanes>
  PERSEUS_INLINE static VectorOf<Memory, lanes> narrow(VectorOf<float, lanes> value) {
    return narrow_bfloat16<lanes>(value);
  }
  template <int lanes>
  PERSEUS_INLINE static VectorOf<float, lanes> nearest(VectorOf<float, lanes> value) {
    return bits_as<VectorOf<float, lanes>>(nearest_bfloat16<lanes>(value) & kBFloat16Bits);
  }
};

// Any byte other than 0 is true; results are 0 and 1.
template <>
struct Element<Bool> {
  using Memory = std::uint8_t;
  using Compute = std::uint8_t;
  template <class To, int lanes>
  PERSEUS_INLINE static VectorOf<Memory, lanes> widen(VectorOf<Memory, lanes> value) {
    return bits_as<VectorOf<Memory, lanes>>(value != 0) & 1;
  }
  template <class From, int lanes>
  PERSEUS_INLINE static VectorOf<Memory, lanes> narrow(VectorOf<Memory, lanes> value) {
    return value;
  }
};

template <class T>
using MemoryOf = typename Element<T>::Memory;
template <class T>
using ComputeOf = typename Element<T>::Compute;

}  // namespace
}  // namespace perseus::host
