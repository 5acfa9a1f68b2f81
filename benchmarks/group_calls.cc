// Calls of a process group from C++, for group_calls.py.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace {

template <typename Call>
double microseconds(int calls, const Call& call) {
  const pybind11::gil_scoped_release released;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double of_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const at::Tensor& tensor, int calls) {
  std::vector<at::Tensor> tensors{tensor};
  return microseconds(calls, [&] { group->allreduce(tensors)->wait(); });
}

// Calls the operators of compiled code.
double of_operators(const std::string& group, const at::Tensor& tensor, int calls) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto reduce = dispatcher.findSchemaOrThrow("_c10d_functional::all_reduce_", "");
  const auto wait = dispatcher.findSchemaOrThrow("_c10d_functional::wait_tensor", "");
  return microseconds(calls, [&] {
    torch::jit::Stack stack{tensor, std::string("sum"), group};
    reduce.callBoxed(stack);
    wait.callBoxed(stack);
  });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module_::import("torch._C._distributed_c10d");
  module.def("of_group", &of_group);
  module.def("of_operators", &of_operators);
}
