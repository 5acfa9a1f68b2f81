// Changes the process's environment safely while other threads read it.
#pragma once

#include <optional>
#include <string>

namespace perseus {

// Sets a variable, or removes it if there is no value. The C library's functions may free the table that another thread
// is reading; this function publishes a new table and never frees the old ones. Any thread. A change by the C library
// at the same time may be lost.
void set_environment(const std::string& name, const std::optional<std::string>& value);

}  // namespace perseus
