// Shapes of tensors, and runs of their elements in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace perseus {

inline constexpr int kHost = -1;  // device number of host memory; 0, 1, … are accelerators

using Shape = std::vector<std::int64_t>;

// Elements in a shape; 1 for a 0-dim tensor.
inline std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// "[64,3]"
std::string to_string(const Shape& shape);

// A run of contiguous elements inside a batch: what transports work on.
struct Piece {
  void* data = nullptr;
  std::int64_t count = 0;  // elements
};

}  // namespace perseus
