// Defines the operation, the scale factors and the dtypes of a reduction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/tables.h"

namespace perseus {

// The operation of a reduction. Average is a sum with Scale::divisor, so that transports need no average.
enum class ReduceOp : std::uint8_t { PERSEUS_REDUCE_OPS(PERSEUS_ENUMERATOR) };

inline std::string_view name_of(ReduceOp op) {
#define PERSEUS_ROW(NAME, name) #name,
  constexpr auto kNames = std::to_array<std::string_view>({PERSEUS_REDUCE_OPS(PERSEUS_ROW)});
#undef PERSEUS_ROW
  return kNames[static_cast<std::size_t>(op)];
}

// The factors of a reduction, which kernels apply without a further pass over the data.
// Result = ((op over ranks of pre * x) / divisor) * post. Integers truncate toward zero after each factor,
// and their division is exact; floating types multiply by post / divisor once.
struct Scale {
  double pre = 1.0;
  double post = 1.0;
  std::int64_t divisor = 1;

  bool is_identity() const { return pre == 1.0 && post == 1.0 && divisor == 1; }
  // NaN equals NaN here, so that ranks that all pass NaN agree.
  bool operator==(const Scale& other) const {
    const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
    return same(pre, other.pre) && same(post, other.post) && divisor == other.divisor;
  }
};

// A reduction of contiguous elements. If `wire_dtype` differs from `dtype` (float16 or bfloat16 for float32 or
// float64), values are converted while packing, summed in float32, rounded to `wire_dtype` once, and widened to `dtype`
// while unpacking.
struct Reduction {
  DType dtype = DType::float32;
  DType wire_dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  Scale scale;

  bool operator==(const Reduction&) const = default;
};

}  // namespace perseus
