// Wraps a Python function as the bootstrap allgather by which ranks find each other.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace perseus::bind {

// Wraps `function(mine: bytes) -> list[bytes]`, whose result is by rank. The result may be called and destroyed by
// threads that do not hold the GIL.
std::function<std::vector<std::string>(std::string_view mine)> bootstrap_allgather_by(pybind11::function function);

}  // namespace perseus::bind
