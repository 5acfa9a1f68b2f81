// Formats events in the Chrome trace format, which Perfetto and chrome://tracing read.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace perseus {

// One event of the timeline: a phase begins or ends on a track, or an instant.
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

// The rank that writes a trace.
struct TraceIdentity {
  int rank = 0;
  int size = 1;
  std::string host;
};

class ChromeFormat {
 public:
  ChromeFormat(TraceIdentity identity, TraceEvent::Clock::time_point start);

  // Returns the first elements of a file. `epoch_us` is the start time in microseconds since 1970.
  std::string head(std::int64_t epoch_us) const;

  // Adds the event, and its track if that is new, to elements joined by ",\n".
  void add(const TraceEvent& event, std::string& elements);

  // Returns an element that says that `count` events were not written.
  std::string dropped(std::int64_t count) const;

 private:
  struct Track {
    int id = 0;
    int depth = 0;        // number of phases that have begun and not ended
    bool shared = false;  // reusable when the depth is 0
  };

  Track& track_of(const std::string& name, std::string& elements);
  int new_track(const std::string& label, std::string& elements);

  TraceIdentity identity_;
  TraceEvent::Clock::time_point start_;
  std::unordered_map<std::string, Track> tracks_;
  std::vector<int> free_;  // shared tracks that are free
  int next_ = 1;
};

}  // namespace perseus
