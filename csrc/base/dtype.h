// The element types a collective can carry, and the size of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace perseus {

enum class DType : std::uint8_t {
  uint8,
  int8,
  int16,
  int32,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  boolean,
  uint16,
};

inline constexpr int kDTypeCount = 11;

// Bytes of one element.
std::size_t size_of(DType dtype);

// "float32", "bool", …: the word used in error texts and by the Python side.
std::string_view name_of(DType dtype);

bool is_floating(DType dtype);

}  // namespace perseus
