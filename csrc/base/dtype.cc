#include "base/dtype.h"

namespace perseus {

namespace {

struct Row {
  std::size_t size;
  std::string_view name;
  bool floating;
};

#define PERSEUS_ROW(NAME, name, text, bytes, is_floating) {bytes, text, is_floating},
constexpr Row kTable[kDTypeCount] = {PERSEUS_DTYPES(PERSEUS_ROW)};
#undef PERSEUS_ROW

const Row& row(DType dtype) { return kTable[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return row(dtype).size; }
std::string_view name_of(DType dtype) { return row(dtype).name; }
bool is_floating(DType dtype) { return row(dtype).floating; }

}  // namespace perseus
