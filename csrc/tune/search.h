// Chooses the values to try next and the values to keep. Pure logic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace perseus {

// The settings that the autotuner may change during the job, on all ranks at the same place in their plans.
inline constexpr std::size_t kTunables = 4;

enum class Tunable : std::size_t { fusion_threshold_bytes, batching_delay_us, chunk_bytes, streams };

inline constexpr std::array<std::string_view, kTunables> kTunableNames = {"fusion_threshold_bytes", "batching_delay_us",
                                                                          "chunk_bytes", "streams"};

using Tunables = std::array<std::int64_t, kTunables>;

inline std::int64_t value_of(const Tunables& tunables, Tunable which) {
  return tunables[static_cast<std::size_t>(which)];
}

// The search over all tunables, one after the other. Each candidate is measured several times, and the median counts. A
// candidate replaces the current value only if it is clearly better. At the end, the best values and the initial values
// are measured again in turn, so that a change in the machine's speed does not decide. The winner is kept.
class Search {
 public:
  // A tunable without candidates is not changed.
  using Candidates = std::array<std::vector<std::int64_t>, kTunables>;

  Search(const Tunables& start, Candidates candidates);

  // Returns the values to measure now, or the values to keep once the search has finished.
  const Tunables& trying() const { return trying_; }
  // The values that are tried beside the initial ones.
  const Candidates& candidates() const { return candidates_; }
  // The largest number of scores until the search has finished.
  std::int64_t most_samples() const;
  bool finished() const { return stage_ == Stage::finished; }
  // Returns true during the last comparison.
  bool comparing() const { return stage_ == Stage::comparing; }

  // Adds a score of trying(); a higher score is better.
  void add(double score);

 private:
  enum class Stage { start, axis, comparing, finished };
  void next_candidate();
  void compare();

  Tunables start_, best_, trying_;
  Candidates candidates_;
  Stage stage_ = Stage::start;
  std::size_t axis_ = 0, candidate_ = 0;
  double best_score_ = 0;
  std::vector<double> scores_;          // of trying_, or of the initial values in the comparison
  std::vector<double> scores_of_best_;  // in the comparison
};

}  // namespace perseus
