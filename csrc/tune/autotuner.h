// Measures how fast the root's collectives go under one set of values after the other, and says what to use next.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <unordered_set>

#include "tune/search.h"
#include "tune/tunables.h"

namespace perseus {

struct AutotuneOptions {
  std::int64_t warmup_samples = 3;
  std::int64_t steps_per_sample = 10;
  std::string log = {};                    // CSV file; empty: none
  std::array<bool, kTunables> fixed = {};  // what the user has set stays
};

// A sample is so many training steps, told by a tensor that comes again: from one time it comes to a later one. Its
// score is bytes per second. Where no name comes again (all have counters in them), a sample is two seconds.
// At the root of the world's lane only; one thread at a time.
class Autotuner {
 public:
  using Clock = std::chrono::steady_clock;

  Autotuner(AutotuneOptions options, const Tunables& start);

  // A collective was carried out. Gives values that all ranks are to use from now on.
  std::optional<Tunables> carried_out(const std::string& name, std::int64_t bytes, Clock::time_point now);

  // The values last given are in use.
  void applied() { waiting_ = false; }

  bool finished() const { return search_.finished(); }

 private:
  bool marks_a_step(const std::string& name, Clock::time_point now);
  std::optional<Tunables> end_sample(double seconds);
  void write_log(double seconds, double score, const char* what);

  AutotuneOptions options_;
  Search search_;
  std::ofstream log_;
  Tunables in_use_;
  std::int64_t sample_ = 0;
  bool waiting_ = false;  // values are on their way to all ranks

  std::string marker_;  // the tensor that steps are counted by
  std::unordered_set<std::string> seen_;
  Clock::time_point marked_{};

  bool sampling_ = false;
  Clock::time_point began_{};
  std::int64_t steps_ = 0, bytes_ = 0;
};

}  // namespace perseus
