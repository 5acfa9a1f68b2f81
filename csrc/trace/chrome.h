// Events as text in the Chrome trace format, which Perfetto and chrome://tracing open.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "trace/event.h"

namespace perseus {

// Who writes: one process of the picture.
struct TraceIdentity {
  int rank = 0;
  int size = 1;
  std::string host;
};

class ChromeFormat {
 public:
  ChromeFormat(TraceIdentity identity, TraceEvent::Clock::time_point start);

  // What a file begins with; `epoch_us`: microseconds since 1970 when it was started.
  std::string head(std::int64_t epoch_us) const;

  // Adds the event, and its track where that is new, to elements joined by ",\n".
  void add(const TraceEvent& event, std::string& elements);

  // So many events were not written.
  std::string dropped(std::int64_t count) const;

 private:
  struct Track {
    int id = 0;
    int depth = 0;        // phases that have begun and not ended
    bool shared = false;  // goes back when the depth is 0
  };

  Track& track_of(const std::string& name, std::string& elements);
  int new_track(const std::string& label, std::string& elements);

  TraceIdentity identity_;
  TraceEvent::Clock::time_point start_;
  std::unordered_map<std::string, Track> tracks_;
  std::vector<int> free_;  // tracks of names that are used once
  int next_ = 1;
};

}  // namespace perseus
