// Definitions of the operations for TensorFlow: inputs, outputs, attributes, shapes.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Registers the definitions. Returns the error text, or "".
std::string register_operations();

}  // namespace perseus::tensorflow
