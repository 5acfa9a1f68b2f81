#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/work_items.h"
#include "device/host/optimizer/optimizer_step.h"

namespace perseus::bind {

namespace py = pybind11;

namespace {

host::OptimizerKind kind_of(const std::string& name) {
  if (name == "sgd") return host::OptimizerKind::sgd;
  if (name == "adam") return host::OptimizerKind::adam;
  if (name == "adamw") return host::OptimizerKind::adamw;
  throw Error(ErrorKind::invalid_argument, "there is no optimizer '" + name + "'; use sgd, adam or adamw");
}

host::StepOptions options_of(const py::dict& given) {
  host::StepOptions options;
  for (const auto& [key, value] : given) {
    const auto name = py::cast<std::string>(key);
    if (name == "kind") {
      options.kind = kind_of(py::cast<std::string>(value));
    } else if (name == "step") {
      options.step = py::cast<std::int64_t>(value);
    } else if (name == "nesterov") {
      options.nesterov = py::cast<bool>(value);
    } else {
      double host::StepOptions::* const member = name == "gradient_scale"  ? &host::StepOptions::gradient_scale
                                                 : name == "learning_rate" ? &host::StepOptions::learning_rate
                                                 : name == "weight_decay"  ? &host::StepOptions::weight_decay
                                                 : name == "beta1"         ? &host::StepOptions::beta1
                                                 : name == "beta2"         ? &host::StepOptions::beta2
                                                 : name == "epsilon"       ? &host::StepOptions::epsilon
                                                 : name == "momentum"      ? &host::StepOptions::momentum
                                                 : name == "dampening"     ? &host::StepOptions::dampening
                                                                           : nullptr;
      if (member == nullptr) throw Error(ErrorKind::invalid_argument, "optimizers have no option '" + name + "'");
      options.*member = py::cast<double>(value);
    }
  }
  return options;
}

void step(const py::dict& options, int dtype, const std::vector<std::uintptr_t>& gradients, std::uintptr_t parameters,
          std::uintptr_t master, std::uintptr_t first, std::uintptr_t second, std::int64_t count) {
  host::StepCall call;
  call.options = options_of(options);
  call.dtype = dtype_of(dtype);
  std::vector<const void*> from;
  from.reserve(gradients.size());
  for (const auto address : gradients) from.push_back(reinterpret_cast<const void*>(address));
  call.gradients = from;
  call.parameters = reinterpret_cast<void*>(parameters);
  call.master = reinterpret_cast<float*>(master);
  call.first = reinterpret_cast<float*>(first);
  call.second = reinterpret_cast<float*>(second);
  call.count = count;
  const py::gil_scoped_release released;
  host::step(call);
}

}  // namespace

void bind_optimizer(py::module_& module) {
  module.def("optimizer_step", &step, py::arg("options"), py::arg("dtype"), py::arg("gradients"), py::arg("parameters"),
             py::arg("master"), py::arg("first"), py::arg("second"), py::arg("count"));
}

}  // namespace perseus::bind
