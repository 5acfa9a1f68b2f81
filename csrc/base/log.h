// Writes log lines to standard error, rank first. The core does not use Python's logging, which needs the GIL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace perseus {

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };

// Parses "trace" … "off" in any case, and Horovod's "fatal"; returns nothing for any other text.
std::optional<LogLevel> parse_log_level(std::string_view text);

// Sets the rank and the level when a session starts. Before, the rank is unknown (−1) and the level is `warning`.
void set_log_identity(int rank, LogLevel level, bool with_time = false);

bool log_enabled(LogLevel level);
void log(LogLevel level, const std::string& text);

// Writes an info line about something that the user has asked for, at every level but `off`.
void announce(const std::string& text);

}  // namespace perseus
