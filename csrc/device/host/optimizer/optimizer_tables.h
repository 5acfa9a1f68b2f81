// Defines the table of optimizer kernels of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/host/optimizer/optimizer_step.h"

namespace perseus::host {

// The factors of a step, computed once from StepOptions.
struct StepFactors {
  float scale;  // of the sum of the gradients
  float decay;  // AdamW: multiplies the parameters. Others: multiplies them before they are added to the gradient
  float first_keep, first_gain;    // SGD: of the momentum and of the gradient. Adam uses first_gain only
  float second_keep, second_gain;  // Adam
  float inverse_root;              // Adam: 1 / √(correction of the second moment's bias)
  float epsilon;
  float rate;
};

// The arguments of a kernel, as plain pointers; see Job in tables.h.
struct StepJob {
  const void* const* gradients;
  std::size_t sources;
  void* parameters;  // bfloat16; null for float32
  float* master;     // for float32, the parameters
  float* first;
  float* second;
  std::int64_t count;
  StepFactors factors;
};

using StepKernel = void (*)(const StepJob& job);

enum class StepRule : std::uint8_t { sgd, momentum, nesterov, adam, adamw };
inline constexpr int kStepRuleCount = 5;

struct StepKernels {
  const char* name;  // of the instruction set, as in Kernels
  StepKernel float32[kStepRuleCount];
  StepKernel bfloat16[kStepRuleCount];
};

extern const StepKernels kScalarStepKernels;
extern const StepKernels kAvx2StepKernels;
extern const StepKernels kAvx512StepKernels;
extern const StepKernels kNeonStepKernels;

// Returns the tables that this processor supports, from the fastest. Never empty.
std::span<const StepKernels* const> usable_step_kernels();

// The function of optimizer_step.h with a given table.
void step(const StepKernels& kernels, const StepCall& call);

}  // namespace perseus::host
