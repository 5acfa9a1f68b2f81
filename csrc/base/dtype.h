// Defines the element types that collectives support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/tables.h"

namespace perseus {

// The element types. kDTypeCount is their number.
enum class DType : std::uint8_t { PERSEUS_DTYPES(PERSEUS_ENUMERATOR) };
inline constexpr int kDTypeCount = PERSEUS_DTYPES(PERSEUS_COUNT);

// Returns the bytes of one element.
std::size_t size_of(DType dtype);

// Returns the name used in error texts and in Python, such as "float32" or "bool".
std::string_view name_of(DType dtype);

bool is_floating(DType dtype);

}  // namespace perseus
