#include <pybind11/stl.h>

#include "base/config.h"
#include "bind/bind.h"

namespace perseus::bind {

void bind_settings(pybind11::module_& module) {
  namespace py = pybind11;
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
