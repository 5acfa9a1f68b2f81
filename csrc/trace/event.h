// One event of the timeline: a phase begins or ends on a track, or an instant.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace perseus {

struct TraceEvent {
  using Clock = std::chrono::steady_clock;
  enum class Kind : std::uint8_t { begin, end, instant };

  Kind kind = Kind::begin;
  Clock::time_point at;
  std::string track;           // the name of a tensor or of another track
  std::string_view prefix;     // static storage; with `what` in capitals the event's name, such as NEGOTIATE_ALLREDUCE
  std::string_view what;       // static storage; empty for an end
  int number = -1;             // instant: its name if `what` is empty
  std::int64_t sequence = -1;  // the collective's sequence number, the same on all ranks
  std::int64_t bytes = -1;
  std::string_view dtype;  // static storage
  std::string note;        // the shape for a begin, the error for an end
};

}  // namespace perseus
