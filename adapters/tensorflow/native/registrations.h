// Declares what the library registers with TensorFlow. Functions that register return the error text, or "".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow.h"

namespace perseus::tensorflow {

// Defines an operation for TensorFlow. Arguments are "name: type"; attributes also have their default.
struct Operation {
  const char* name;
  std::int32_t verb;  // PERSEUS_…; of no meaning for the operations that follow the collectives
  std::vector<const char*> inputs, outputs, attributes;
  ShapeFunction shapes;
};

// Returns all operations. Collectives come first.
const std::vector<Operation>& operations();
inline constexpr std::size_t kCollectives = 7;

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
