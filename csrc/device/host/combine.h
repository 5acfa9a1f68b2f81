// Implements the operations on vectors. The order of operands is fixed, so that every instruction set gives the same
// bits.
#pragma once

#include <type_traits>

#include "device/host/lanes.h"

namespace perseus::host {
namespace {

// Integers are computed as unsigned, because signed overflow is undefined. The bits are the same.
template <class T>
struct Wrapping {
  using type = std::make_unsigned_t<T>;
};
template <>
struct Wrapping<float> {
  using type = float;
};
template <>
struct Wrapping<double> {
  using type = double;
};

template <class T, int lanes>
using WrappingVector = VectorOf<typename Wrapping<T>::type, lanes>;

struct Sum {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    using W = WrappingVector<T, lanes>;
    return bits_as<VectorOf<T, lanes>>(bits_as<W>(a) + bits_as<W>(b));
  }
};

struct Product {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    using W = WrappingVector<T, lanes>;
    return bits_as<VectorOf<T, lanes>>(bits_as<W>(a) * bits_as<W>(b));
  }
};

// The minimum with a NaN is NaN, as in NumPy and PyTorch. A comparison with NaN is false, which keeps b; a NaN in a is
// selected afterwards.
struct Min {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    const VectorOf<T, lanes> less = a < b ? a : b;
    if constexpr (std::is_floating_point_v<T>) return a == a ? less : a;
    return less;
  }
};

struct Max {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    const VectorOf<T, lanes> greater = a > b ? a : b;
    if constexpr (std::is_floating_point_v<T>) return a == a ? greater : a;
    return greater;
  }
};

struct BitAnd {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    return a & b;
  }
};

struct BitOr {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    return a | b;
  }
};

struct BitXor {
  template <class T, int lanes>
  PERSEUS_INLINE static VectorOf<T, lanes> combine(VectorOf<T, lanes> a, VectorOf<T, lanes> b) {
    return a ^ b;
  }
};

}  // namespace
}  // namespace perseus::host
