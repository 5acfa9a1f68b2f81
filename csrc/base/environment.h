// Changes of the process's environment that are safe while other threads read it.
#pragma once

#include <optional>
#include <string>

namespace perseus {

// Sets a variable, or removes it. Unlike setenv(), which may free the table that getenv() of another thread walks
// through, this publishes a new table and keeps the old ones for good. Any thread; a setenv() at the same time may be
// lost.
void set_environment(const std::string& name, const std::optional<std::string>& value);

}  // namespace perseus
