// What happens when TensorFlow loads this library, and what Python asks of it afterwards
// (adapters/tensorflow/native.py).
#include <string>

#include "../compat/done_callback.h"
#include "core.h"
#include "kernel.h"
#include "number.h"
#include "operations.h"
#include "xla.h"

#define PERSEUS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace perseus::tensorflow;

std::string& problem() {
  static std::string text;
  return text;
}

// TensorFlow tells Python about operations that are registered while a library is being loaded.
struct AtLoad {
  AtLoad() {
    problem() = tf().problem;
    if (!problem().empty()) return;
    problem() = register_operations();
    problem() += register_kernels();
    problem() += register_number_kernels();
  }
};
const AtLoad at_load;

}  // namespace

// Why the operations cannot be used; "" where they can.
PERSEUS_EXPORT const char* perseus_tensorflow_problem() { return problem().c_str(); }

// `api`: of perseus_like._core.c_api().
PERSEUS_EXPORT void perseus_tensorflow_start(const void* api) { use_core(static_cast<const PerseusApi*>(api)); }

// Why graphs that are compiled by XLA cannot contain collectives; "" where they can.
PERSEUS_EXPORT const char* perseus_tensorflow_start_xla() {
  static const std::string text = register_xla_target();
  return text.c_str();
}

PERSEUS_EXPORT void perseus_tensorflow_distrust_done(int distrust) { distrust_done(distrust != 0); }
