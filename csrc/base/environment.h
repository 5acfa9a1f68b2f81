// Changes of the process's environment that are safe while other threads read it.
#pragma once

#include <optional>
#include <string>

namespace perseus {

// Sets a variable, or removes it. The C library's functions may free the table that another thread is reading. This one
// publishes a new table and keeps the old ones for good. Any thread; a change by the C library at the same time may be
// lost.
void set_environment(const std::string& name, const std::optional<std::string>& value);

}  // namespace perseus
