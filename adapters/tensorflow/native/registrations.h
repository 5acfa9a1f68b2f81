// Declares what the library registers with TensorFlow. Each function returns the error text, or "".
#pragma once

#include <string>

namespace perseus::tensorflow {

// Registers the operations for graphs: their inputs, outputs, attributes and shapes.
std::string register_operations();

// Registers the kernels of all collective operations.
std::string register_kernels();

// Registers the kernels of the nodes that return the rank, the size or a similar number when the graph runs.
std::string register_number_kernels();

// Registers the custom call for graphs that XLA compiles for the CPU. It blocks until the collective is complete. The
// text says why this TensorFlow does not support it.
std::string register_xla_target();

}  // namespace perseus::tensorflow
