// Collectives in graphs that XLA compiles for the CPU: a custom call, which blocks.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Text of why it is not possible in this TensorFlow, or "".
std::string register_xla_target();

}  // namespace perseus::tensorflow
