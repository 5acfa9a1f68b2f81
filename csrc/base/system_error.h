// Names errors of system calls.
#pragma once

#include <string>
#include <system_error>

namespace perseus {

// Returns the system's text for a value of errno. Thread-safe, unlike std::strerror.
inline std::string system_error_text(int error) { return std::system_category().message(error); }

}  // namespace perseus
