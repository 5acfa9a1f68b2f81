#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <ctime>

namespace perseus {

namespace {

std::atomic<int> log_rank{-1};
std::atomic<LogLevel> log_level{LogLevel::warning};
std::atomic<bool> log_with_time{false};

constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warning", "error", "off"};

// "2026-11-20 09:05:00.123456 ", local time.
std::string time_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  localtime_r(&now.tv_sec, &parts);
  std::array<char, 64> text{};
  const auto length = std::strftime(text.data(), text.size(), "%F %T", &parts);
  const auto micros = std::to_string(1'000'000 + now.tv_nsec / 1000);
  return std::string(text.data(), length) + "." + micros.substr(1) + " ";
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "fatal") return LogLevel::error;
  const auto* found = std::find(kLevels.begin(), kLevels.end(), lower);
  if (found == kLevels.end()) return {};
  return static_cast<LogLevel>(found - kLevels.begin());
}

void set_log_identity(int rank, LogLevel level, bool with_time) {
  log_rank = rank;
  log_with_time = with_time;
  log_level = level;
}

bool log_enabled(LogLevel level) { return level >= log_level.load(std::memory_order_relaxed); }

namespace {

void write_line(LogLevel level, const std::string& text) {
  const int rank = log_rank;
  std::string line = log_with_time ? time_now() : "";
  line += rank < 0 ? "[perseus]" : "[perseus rank " + std::to_string(rank) + "]";
  line.append(" ").append(kLevels[static_cast<std::size_t>(level)]).append(": ").append(text).append("\n");
  // One write, so that lines of several ranks are never torn.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void log(LogLevel level, const std::string& text) {
  if (log_enabled(level)) write_line(level, text);
}

void announce(const std::string& text) {
  if (log_level != LogLevel::off) write_line(LogLevel::info, text);
}

}  // namespace perseus
