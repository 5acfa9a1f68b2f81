#include "device/host/optimizer/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "device/host/optimizer/optimizer_tables.h"
#include "device/host/tables.h"

namespace perseus::host {

namespace {

StepRule rule_of(const StepOptions& options) {
  switch (options.kind) {
    case OptimizerKind::adam: return StepRule::adam;
    case OptimizerKind::adamw: return StepRule::adamw;
    case OptimizerKind::sgd: break;
  }
  if (options.momentum == 0.0) return StepRule::sgd;
  return options.nesterov ? StepRule::nesterov : StepRule::momentum;
}

StepFactors factors_of(const StepOptions& o) {
  StepFactors f{};
  f.scale = static_cast<float>(o.gradient_scale);
  f.decay = static_cast<float>(o.weight_decay);
  f.rate = static_cast<float>(o.learning_rate);
  if (o.kind == OptimizerKind::sgd) {
    // The first momentum is the gradient, whatever the dampening.
    f.first_keep = o.step == 1 ? 0.0F : static_cast<float>(o.momentum);
    f.first_gain = o.step == 1 ? 1.0F : static_cast<float>(1.0 - o.dampening);
    f.second_keep = static_cast<float>(o.momentum);  // Nesterov's look ahead
    return f;
  }
  const auto step = static_cast<double>(o.step);
  if (o.kind == OptimizerKind::adamw) f.decay = static_cast<float>(1.0 - o.learning_rate * o.weight_decay);
  f.first_gain = static_cast<float>(1.0 - o.beta1);
  f.second_keep = static_cast<float>(o.beta2);
  f.second_gain = static_cast<float>(1.0 - o.beta2);
  f.inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, step)));
  f.epsilon = static_cast<float>(o.epsilon);
  f.rate = static_cast<float>(o.learning_rate / (1.0 - std::pow(o.beta1, step)));
  return f;
}

// Returns what is wrong, or an empty text.
std::string_view mistake_in(const StepCall& call, StepRule rule) {
  const auto& o = call.options;
  const bool is_adam = rule == StepRule::adam || rule == StepRule::adamw;
  const auto is_rate = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (call.dtype != DType::float32 && call.dtype != DType::bfloat16) return "the dtype is neither float32 nor bfloat16";
  if (call.gradients.empty()) return "there is no gradient";
  if (o.step < 1) return "steps are counted from 1";
  if (is_adam && !(is_rate(o.beta1) && is_rate(o.beta2))) return "beta1 and beta2 must be at least 0 and less than 1";
  if (call.parameters == nullptr) return "the memory of the parameters is missing";
  if (call.dtype == DType::bfloat16 && call.master == nullptr) return "bfloat16 needs parameters in float32, too";
  if (rule != StepRule::sgd && call.first == nullptr) return "the memory of the first moment is missing";
  if (is_adam && call.second == nullptr) return "the memory of the second moment is missing";
  return "";
}

std::vector<const StepKernels*> find_usable_steps() {
  static const std::vector<const StepKernels*> kBuilt{
#ifdef PERSEUS_HAVE_AVX512
      &kAvx512StepKernels,
#endif
#ifdef PERSEUS_HAVE_AVX2
      &kAvx2StepKernels,
#endif
#ifdef PERSEUS_HAVE_NEON
      &kNeonStepKernels,
#endif
      &kScalarStepKernels};
  std::vector<const StepKernels*> found;
  for (const auto* kernels : usable_kernels()) {
    const auto has_name = [&](const StepKernels* built) { return std::string_view(built->name) == kernels->name; };
    const auto at = std::find_if(kBuilt.begin(), kBuilt.end(), has_name);
    if (at != kBuilt.end()) found.push_back(*at);
  }
  return found;
}

}  // namespace

std::span<const StepKernels* const> usable_step_kernels() {
  static const std::vector<const StepKernels*> kUsable = find_usable_steps();
  return kUsable;
}

void step(const StepKernels& kernels, const StepCall& call) {
  const auto rule = rule_of(call.options);
  if (const auto mistake = mistake_in(call, rule); !mistake.empty()) {
    throw Error(ErrorKind::invalid_argument, "optimizer step: " + std::string(mistake));
  }
  if (call.count <= 0) return;
  const bool is_half = call.dtype == DType::bfloat16;
  const auto kernel = (is_half ? kernels.bfloat16 : kernels.float32)[static_cast<std::size_t>(rule)];
  kernel({call.gradients.data(), call.gradients.size(), is_half ? call.parameters : nullptr,
          is_half ? call.master : static_cast<float*>(call.parameters), call.first, call.second, call.count,
          factors_of(call.options)});
}

void step(const StepCall& call) { step(*usable_step_kernels().front(), call); }

}  // namespace perseus::host
