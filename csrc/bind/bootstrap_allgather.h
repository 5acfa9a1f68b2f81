// A Python function as the exchange of bytes by which ranks find each other.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace perseus::bind {

// `function(mine: bytes) -> list[bytes]`, by rank. Called, and let go of, from threads that do not hold the GIL.
std::function<std::vector<std::string>(std::string_view mine)> bootstrap_allgather_by(pybind11::function function);

}  // namespace perseus::bind
