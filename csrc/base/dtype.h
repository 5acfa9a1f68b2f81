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

struct DTypeProperties {
  std::size_t size;       // bytes of one element
  std::string_view name;  // in error texts and in Python, such as "float32" or "bool"
  bool floating;
};

#define PERSEUS_ROW(NAME, name, text, bytes, is_floating) {bytes, text, is_floating},
inline constexpr DTypeProperties kDTypeTable[kDTypeCount] = {PERSEUS_DTYPES(PERSEUS_ROW)};
#undef PERSEUS_ROW

constexpr std::size_t size_of(DType dtype) { return kDTypeTable[static_cast<std::size_t>(dtype)].size; }
constexpr std::string_view name_of(DType dtype) { return kDTypeTable[static_cast<std::size_t>(dtype)].name; }
constexpr bool is_floating(DType dtype) { return kDTypeTable[static_cast<std::size_t>(dtype)].floating; }

}  // namespace perseus
