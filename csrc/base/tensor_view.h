// A tensor as the core sees it: where it is and what it holds; never who owns it.
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

// Contiguous elements in row-major order.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::float32;
  Shape shape;
  int device = kHost;

  std::int64_t count() const { return count_of(shape); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
};

// A run of contiguous elements inside a batch: what transports work on.
struct Piece {
  void* data = nullptr;
  std::int64_t count = 0;  // elements
};

}  // namespace perseus
