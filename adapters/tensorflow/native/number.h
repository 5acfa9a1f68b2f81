// Rank, size and their like as nodes of a graph, which tell them when the graph runs.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Text of what went wrong, or "".
std::string register_number_kernels();

}  // namespace perseus::tensorflow
