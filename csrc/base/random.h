// Returns random bytes of the kernel, for names and secrets that cannot be guessed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perseus {

// Returns `count` random bytes. Throws Error(transport) if the kernel provides none.
std::string random_bytes(std::size_t count);

// Returns two lower-case hexadecimal digits for each byte.
std::string hex_text(std::string_view bytes);

}  // namespace perseus
