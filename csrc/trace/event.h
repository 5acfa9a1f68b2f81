// One mark of the timeline: something began, ended or happened on a track.
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
  std::string track;           // a tensor's name, or whatever else goes its own way
  std::string_view prefix;     // static storage; with `what`, in capitals, the name: NEGOTIATE_ALLREDUCE
  std::string_view what;       // static storage; empty at an end
  int number = -1;             // instant: its name where `what` is empty
  std::int64_t sequence = -1;  // place in the plan, the same on all ranks
  std::int64_t bytes = -1;
  std::string_view dtype;  // static storage
  std::string note;        // shape at a begin, what went wrong at an end
};

}  // namespace perseus
