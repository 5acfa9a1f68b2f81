// Updates parameters by the gradients of several ranks in one pass over memory: sum, scale, weight decay, moments,
// update.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace perseus::host {

// The formulas are those of torch.optim. AdamW decays the weights, Adam adds the decay to the gradient.
enum class OptimizerKind : std::uint8_t { sgd, adam, adamw };

struct StepOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  // Multiplies the sum of the gradients: 1 / ranks, the inverse of a loss scale, the factor of clipping. A negative
  // factor maximizes.
  double gradient_scale = 1.0;
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  std::int64_t step = 1;  // counts the updates from 1, for the correction of Adam's bias and the first momentum
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // Adam
  double momentum = 0.0, dampening = 0.0;             // SGD
  bool nesterov = false;
};

struct StepCall {
  StepOptions options;
  DType dtype = DType::float32;            // of gradients and parameters: float32 or bfloat16
  std::span<const void* const> gradients;  // of each rank, in the order in which they are added, which is in float32
  void* parameters = nullptr;
  float* master = nullptr;  // for bfloat16: the parameters in float32, of which `parameters` gets the nearest values
  float* first = nullptr;   // Adam's first moment; SGD's momentum, unless momentum is 0. Zero before the first step
  float* second = nullptr;  // Adam's second moment. Zero before the first step
  std::int64_t count = 0;
};

// Updates parameters, master and moments in place. The bits are the same on every processor and at every place of an
// element. Throws Error(invalid_argument) for other dtypes, options outside their range, and memory that is missing.
void step(const StepCall& call);

}  // namespace perseus::host
