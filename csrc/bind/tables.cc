#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include "base/config.h"
#include "bind/work_items.h"
#include "capi/perseus.h"

namespace perseus::bind {

namespace py = pybind11;

// perseus_like/tables.py has the same enums, generated from base/tables.h. A test compares them with these.
void bind_enums(pybind11::module_& module) {
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

void bind_settings(pybind11::module_& module) {
  // Rows of docs/environment.md: name, Horovod's name or "", default, help.
  module.def("settings_table", [] {
    py::list rows;
    for (const auto& row : settings()) {
      rows.append(py::make_tuple(
          py::str(row.name.data(), row.name.size()), py::str(row.horovod_name.data(), row.horovod_name.size()),
          py::str(row.default_value.data(), row.default_value.size()), py::str(row.help.data(), row.help.size())));
    }
    return rows;
  });
  // Horovod's variables that have no effect here: name and reason.
  module.def("unused_settings", [] {
    py::list rows;
    for (const auto& row : unused_settings()) {
      rows.append(py::make_tuple(py::str(row.horovod_name.data(), row.horovod_name.size()),
                                 py::str(row.why.data(), row.why.size())));
    }
    return rows;
  });
}

}  // namespace perseus::bind
