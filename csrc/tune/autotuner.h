// Measures the throughput of collectives under different settings and chooses the next setting.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <unordered_set>

#include "tune/search.h"

namespace perseus {

struct AutotuneOptions {
  std::int64_t warmup_samples = 3;
  std::int64_t steps_per_sample = 10;
  std::string log = {};                    // CSV file; empty: none
  std::array<bool, kTunables> fixed = {};  // settings of the user, which are not changed
  bool is_asked_for = false;               // the user asked for it: log each trial and the outcome
};

// The tuner of a job, which runs at the root of the world's process set. A sample is a number of training steps. A step
// lasts from one collective of a tensor, the marker, to the next collective of the same tensor. The score of a sample
// is bytes per second. If no name repeats, because all have counters, a sample lasts two seconds. One thread at a time.
class Autotuner {
 public:
  using Clock = std::chrono::steady_clock;

  Autotuner(AutotuneOptions options, const Tunables& start);
  ~Autotuner();  // tells the user if the search has not finished
  Autotuner(const Autotuner&) = delete;
  Autotuner& operator=(const Autotuner&) = delete;

  // Records an executed collective. Returns values if all ranks should use new ones from now on.
  std::optional<Tunables> executed(const std::string& name, std::int64_t bytes, Clock::time_point now);

  // States that the values last returned are in use.
  void applied() { waiting_ = false; }

  bool finished() const { return search_.finished(); }

 private:
  bool marks_a_step(const std::string& name, Clock::time_point now);
  std::optional<Tunables> end_sample(double seconds);
  void tell(const std::string& text) const;
  void tell_what_is_tried() const;
  void write_log(double seconds, double score, const char* what);

  AutotuneOptions options_;
  Search search_;
  std::ofstream log_;
  Tunables in_use_;
  std::int64_t sample_ = 0;
  bool waiting_ = false;  // new values are not in use yet

  std::string marker_;  // the tensor by which steps are counted
  std::unordered_set<std::string> seen_;
  Clock::time_point marked_{};

  bool sampling_ = false;
  Clock::time_point began_{};
  std::int64_t steps_ = 0, bytes_ = 0;
};

}  // namespace perseus
