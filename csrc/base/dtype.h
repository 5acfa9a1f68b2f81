// Defines the element types that collectives support.
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

// Returns the bytes of one element.
std::size_t size_of(DType dtype);

// Returns the name used in error texts and in Python, such as "float32" or "bool".
std::string_view name_of(DType dtype);

bool is_floating(DType dtype);

}  // namespace perseus
