#include "base/reduce.h"

#include <array>

namespace perseus {

std::string_view name_of(ReduceOp op) {
  constexpr std::array<std::string_view, 7> kNames = {"sum", "min", "max", "product", "band", "bor", "bxor"};
  return kNames[static_cast<std::size_t>(op)];
}

}  // namespace perseus
