#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>

namespace perseus {

namespace {

std::atomic<int> log_rank{-1};
std::atomic<LogLevel> log_level{LogLevel::warning};

constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warning", "error", "off"};

}  // namespace

LogLevel parse_log_level(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "fatal") return LogLevel::error;
  const auto* found = std::find(kLevels.begin(), kLevels.end(), lower);
  return found == kLevels.end() ? LogLevel::warning : static_cast<LogLevel>(found - kLevels.begin());
}

void set_log_identity(int rank, LogLevel level) {
  log_rank = rank;
  log_level = level;
}

bool log_enabled(LogLevel level) { return level >= log_level.load(std::memory_order_relaxed); }

void log(LogLevel level, const std::string& text) {
  if (!log_enabled(level)) return;
  const int rank = log_rank;
  std::string line = rank < 0 ? "[perseus]" : "[perseus rank " + std::to_string(rank) + "]";
  line.append(" ").append(kLevels[static_cast<std::size_t>(level)]).append(": ").append(text).append("\n");
  // One write, so that lines of several ranks are never torn.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace perseus
