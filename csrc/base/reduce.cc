#include "base/reduce.h"

#include <array>

namespace perseus {

std::string_view name_of(ReduceOp op) {
#define PERSEUS_ROW(NAME, name) #name,
  constexpr auto kNames = std::to_array<std::string_view>({PERSEUS_REDUCE_OPS(PERSEUS_ROW)});
#undef PERSEUS_ROW
  return kNames[static_cast<std::size_t>(op)];
}

}  // namespace perseus
