#include "base/dtype.h"

namespace perseus {

namespace {

struct Row {
  std::size_t size;
  std::string_view name;
  bool floating;
};

constexpr Row kTable[kDTypeCount] = {
    {1, "uint8", false},  {1, "int8", false},   {2, "int16", false},   {4, "int32", false},
    {8, "int64", false},  {2, "float16", true}, {2, "bfloat16", true}, {4, "float32", true},
    {8, "float64", true}, {1, "bool", false},   {2, "uint16", false},
};

const Row& row(DType dtype) { return kTable[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return row(dtype).size; }
std::string_view name_of(DType dtype) { return row(dtype).name; }
bool is_floating(DType dtype) { return row(dtype).floating; }

}  // namespace perseus
