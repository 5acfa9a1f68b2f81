#include <pybind11/native_enum.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/reduce.h"
#include "bind/bind.h"

namespace perseus::bind {

void bind_enums(pybind11::module_& module) {
  namespace py = pybind11;
  py::native_enum<DType> dtype(module, "DType", "enum.IntEnum");
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto value = static_cast<DType>(i);
    dtype.value(value == DType::boolean ? "boolean" : std::string(name_of(value)).c_str(), value);
  }
  dtype.finalize();
  py::native_enum<ReduceOp> op(module, "ReduceOp", "enum.IntEnum");
  for (int i = 0; i <= static_cast<int>(ReduceOp::bxor); ++i) {
    op.value(std::string(name_of(static_cast<ReduceOp>(i))).c_str(), static_cast<ReduceOp>(i));
  }
  op.finalize();
  py::native_enum<ErrorKind>(module, "ErrorKind", "enum.IntEnum")
      .value("invalid_argument", ErrorKind::invalid_argument)
      .value("not_initialized", ErrorKind::not_initialized)
      .value("disagreement", ErrorKind::disagreement)
      .value("peer_lost", ErrorKind::peer_lost)
      .value("timed_out", ErrorKind::timed_out)
      .value("transport", ErrorKind::transport)
      .value("unavailable", ErrorKind::unavailable)
      .value("shut_down", ErrorKind::shut_down)
      .finalize();
}

}  // namespace perseus::bind
