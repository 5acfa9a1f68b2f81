// Registers everything when TensorFlow loads this library, and exports functions for adapters/tensorflow/native.py.
#include <string>

#include "../compat/done_callback.h"
#include "core.h"
#include "registrations.h"

#define PERSEUS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace perseus::tensorflow;

std::string& problem() {
  static std::string text;
  return text;
}

// A static object, because TensorFlow tells Python only of operations that are registered while the library is being
// loaded.
struct AtLoad {
  AtLoad() noexcept {
    problem() = tf().problem;
    if (!problem().empty()) return;
    problem() = register_operations();
    problem() += register_kernels();
    problem() += register_number_kernels();
  }
};
const AtLoad at_load;

}  // namespace

// Returns why the operations cannot be used; "" if they can.
PERSEUS_EXPORT const char* perseus_tensorflow_problem() { return problem().c_str(); }

// Receives the table of functions, perseus_like._core.c_api().
PERSEUS_EXPORT void perseus_tensorflow_start(const void* api) { use_core(static_cast<const PerseusApi*>(api)); }

// Returns why graphs that XLA compiles cannot contain collectives; "" if they can.
PERSEUS_EXPORT const char* perseus_tensorflow_start_xla() {
  static const std::string text = register_xla_target();
  return text.c_str();
}

PERSEUS_EXPORT void perseus_tensorflow_distrust_done(int distrust) { distrust_done(distrust != 0); }
