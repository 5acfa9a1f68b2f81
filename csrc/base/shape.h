// Defines tensor shapes, and views of contiguous elements that do not own their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace perseus {

inline constexpr int kHost = -1;  // the device number of host memory; 0, 1, … are accelerators

using Shape = std::vector<std::int64_t>;

// Returns the number of elements; 1 for a 0-dim tensor.
inline std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Returns the shape as text, such as "[64,3]".
inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + ']';
}

// A view of contiguous elements, the unit of data that transports process.
struct Piece {
  void* data = nullptr;
  std::int64_t count = 0;  // elements
};

}  // namespace perseus
