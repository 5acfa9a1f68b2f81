// The operations as TensorFlow knows them: inputs, outputs, attributes, shapes.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Text of what went wrong, or "".
std::string register_operations();

}  // namespace perseus::tensorflow
