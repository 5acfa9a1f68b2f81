#include <pybind11/native_enum.h>

#include "bind/work_items.h"
#include "capi/perseus.h"

namespace perseus::bind {

// perseus_like/tables.py has the same enums, generated from base/tables.h. A test compares them with these.
void bind_enums(pybind11::module_& module) {
  namespace py = pybind11;
#define PERSEUS_ROW(NAME, name, ...) .value(#name, PERSEUS_DTYPE_##NAME)
  py::native_enum<PerseusDType>(module, "DType", "enum.IntEnum") PERSEUS_DTYPES(PERSEUS_ROW).finalize();
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, name, ...) .value(#name, PERSEUS_OP_##NAME)
  py::native_enum<PerseusReduceOp>(module, "ReduceOp", "enum.IntEnum") PERSEUS_REDUCE_OPS(PERSEUS_ROW).finalize();
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, name, ...) .value(#name, PERSEUS_ERROR_##NAME)
  py::native_enum<PerseusErrorKind>(module, "ErrorKind", "enum.IntEnum") PERSEUS_ERROR_KINDS(PERSEUS_ROW).finalize();
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, name, ...) .value(#name, PERSEUS_##NAME)
  py::native_enum<PerseusVerb>(module, "Verb", "enum.IntEnum") PERSEUS_VERBS(PERSEUS_ROW).finalize();
#undef PERSEUS_ROW
#define PERSEUS_ROW(NAME, name) .value(#name, Start::name)
  py::native_enum<Start>(module, "Start", "enum.IntEnum") PERSEUS_STARTS(PERSEUS_ROW).finalize();
#undef PERSEUS_ROW
}

}  // namespace perseus::bind
