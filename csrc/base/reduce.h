// What a reduction does to its elements.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace perseus {

// "Average" is a sum with Scale::divisor, so that no engine has to know it.
enum class ReduceOp : std::uint8_t { sum, min, max, product, band, bor, bxor };

std::string_view name_of(ReduceOp op);

// Factors applied inside the reduction, without a pass of their own.
// Result = ((op over ranks of pre * x) / divisor) * post. Integers truncate toward zero after each factor,
// and their division is exact; floating types multiply by post / divisor once.
struct Scale {
  double pre = 1.0;
  double post = 1.0;
  std::int64_t divisor = 1;

  bool is_identity() const { return pre == 1.0 && post == 1.0 && divisor == 1; }
  // A NaN is the same as a NaN: ranks that pass one agree.
  bool operator==(const Scale& other) const {
    const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
    return same(pre, other.pre) && same(post, other.post) && divisor == other.divisor;
  }
};

// A reduction on contiguous elements. `wire` differs from `dtype` when values travel compressed
// (float32 or float64 as float16 or bfloat16): they are converted while packing, summed in float32,
// rounded to `wire` once, and widened to `dtype` while unpacking.
struct Reduction {
  DType dtype = DType::float32;
  DType wire = DType::float32;
  ReduceOp op = ReduceOp::sum;
  Scale scale;

  bool operator==(const Reduction&) const = default;
};

}  // namespace perseus
