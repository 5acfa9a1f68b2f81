// Lines for people, rank first, on standard error: engine threads must not touch Python's logging (it needs the GIL).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perseus {

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };

// "trace" … "off", also Horovod's spellings ("fatal"); anything else is `warning`.
LogLevel parse_log_level(std::string_view text);

// Set once a session starts; before it the rank is unknown (-1) and the level is `warning`.
void set_log_identity(int rank, LogLevel level, bool with_time = false);

bool log_enabled(LogLevel level);
void log(LogLevel level, const std::string& text);

}  // namespace perseus
