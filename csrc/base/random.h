// Random bytes of the kernel, for names and secrets that nobody can guess.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perseus {

// Throws Error(transport) if the kernel has none.
std::string random_bytes(std::size_t count);

// Two lower-case hexadecimal digits for each byte.
std::string hex_text(std::string_view bytes);

}  // namespace perseus
