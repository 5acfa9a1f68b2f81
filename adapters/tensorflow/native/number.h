// Nodes that return the rank, the size or a similar number at the time when the graph runs.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Registers the kernels. Returns the error text, or "".
std::string register_number_kernels();

}  // namespace perseus::tensorflow
