// Applies Scale to a block of vectors: multiplies floating types, and truncates integers toward zero.
#pragma once

#include <type_traits>

#include "device/host/elements.h"
#include "device/host/tables.h"

namespace perseus::host {
namespace {

template <class T>
struct FloatScaling {
  explicit FloatScaling(const Job& job)
      : pre(plain(job.pre)),
        post(plain(job.post / static_cast<double>(job.divisor))),
        has_pre(pre != T{1}),
        has_post(post != T{1}) {}

  template <class V, int vectors>
  PERSEUS_INLINE void before(V (&block)[vectors]) const {
    for (int i = 0; i < vectors; ++i) block[i] = rounded(block[i] * pre);
  }
  template <class V, int vectors>
  PERSEUS_INLINE void after(V (&block)[vectors]) const {
    for (int i = 0; i < vectors; ++i) block[i] = block[i] * post;
  }

  T pre;
  T post;
  bool has_pre;
  bool has_post;

 private:
  // Returns a NaN without payload, as bfloat16.h needs.
  static T plain(double factor) {
    return factor == factor ? static_cast<T>(factor) : static_cast<T>(__builtin_nan(""));
  }
};

// Converts to int64. A value out of range becomes the nearest limit, and NaN becomes 0. Within the range integers wrap,
// as their sums do.
inline std::int64_t truncate(double value) {
  if (value >= 0x1p63) return INT64_MAX;
  if (value <= -0x1p63) return INT64_MIN;
  return value == value ? static_cast<std::int64_t>(value) : 0;
}

struct IntegerFactor {
  explicit IntegerFactor(double value)
      : real(value), whole(truncate(value)), is_whole(value < 0x1p63 && static_cast<double>(whole) == value) {}

  // A whole factor is exact for every int64; other factors need a double.
  std::int64_t times(std::int64_t value) const {
    if (!is_whole) return truncate(static_cast<double>(value) * real);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) * static_cast<std::uint64_t>(whole));
  }

  double real;
  std::int64_t whole;
  bool is_whole;
};

template <class T>
struct IntegerScaling {
  explicit IntegerScaling(const Job& job)
      : pre(job.pre),
        post(job.post),
        divisor(job.divisor),
        has_pre(job.pre != 1.0),
        has_post(job.post != 1.0 || job.divisor != 1) {}

  // Works on a copy, so that the block stays in registers if there is no factor.
  template <class V, int vectors>
  PERSEUS_INLINE void before(V (&block)[vectors]) const {
    constexpr int kItems = vectors * (sizeof(V) / sizeof(T));
    T items[kItems];
    __builtin_memcpy(items, block, sizeof items);
    before_each(items, kItems);
    __builtin_memcpy(block, items, sizeof items);
  }
  template <class V, int vectors>
  PERSEUS_INLINE void after(V (&block)[vectors]) const {
    constexpr int kItems = vectors * (sizeof(V) / sizeof(T));
    T items[kItems];
    __builtin_memcpy(items, block, sizeof items);
    after_each(items, kItems);
    __builtin_memcpy(block, items, sizeof items);
  }

  IntegerFactor pre;
  IntegerFactor post;
  std::int64_t divisor;
  bool has_pre;
  bool has_post;

 private:
  __attribute__((noinline)) void before_each(T* items, int count) const {
    for (int i = 0; i < count; ++i) items[i] = static_cast<T>(pre.times(items[i]));
  }
  __attribute__((noinline)) void after_each(T* items, int count) const {
    if constexpr (sizeof(T) < sizeof(std::int64_t)) {
      // This is the case of averages. A double holds such an integer, and the rounded quotient never passes the next
      // whole number.
      if (post.real == 1.0 && divisor > 0) {
        const auto by = static_cast<double>(divisor);
        for (int i = 0; i < count; ++i) items[i] = static_cast<T>(static_cast<std::int32_t>(items[i] / by));
        return;
      }
    }
    // The result of each step is converted to the type again.
    for (int i = 0; i < count; ++i) items[i] = static_cast<T>(post.times(static_cast<T>(divided(items[i]))));
  }
  // INT64_MIN / −1 wraps like every other result that does not fit.
  std::int64_t divided(std::int64_t value) const {
    if (divisor == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(value));
    return value / divisor;
  }
};

// Booleans have no factors.
struct NoScaling {
  explicit NoScaling(const Job&) {}
  template <class Block>
  PERSEUS_INLINE void before(Block&) const {}
  template <class Block>
  PERSEUS_INLINE void after(Block&) const {}
  static constexpr bool has_pre = false;
  static constexpr bool has_post = false;
};

template <class T>
using ScalingOf =
    std::conditional_t<std::is_same_v<T, Bool>, NoScaling,
                       std::conditional_t<std::is_integral_v<T>, IntegerScaling<T>, FloatScaling<ComputeOf<T>>>>;

}  // namespace
}  // namespace perseus::host
