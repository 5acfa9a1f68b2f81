#include "base/reduce.h"

#include <array>

#include "base/tables.h"

namespace perseus {

std::string_view name_of(ReduceOp op) {
#define PERSEUS_ROW(NAME, name) #name,
  constexpr std::array<std::string_view, 7> kNames = {PERSEUS_REDUCE_OPS(PERSEUS_ROW)};
#undef PERSEUS_ROW
  return kNames[static_cast<std::size_t>(op)];
}

}  // namespace perseus
