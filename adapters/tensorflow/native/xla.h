// Collectives in graphs that XLA compiles for the CPU, as a custom call that blocks.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Registers the custom call. Returns why this TensorFlow does not support it, or "".
std::string register_xla_target();

}  // namespace perseus::tensorflow
