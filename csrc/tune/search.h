// Which values to try next, and which to keep: pure logic.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tune/tunables.h"

namespace perseus {

// One tunable after the other: each of its candidates is measured several times, and the median counts. A candidate
// that is not clearly better does not replace what is there. In the end the best values and those of the beginning are
// measured again, alternating, so that a machine that has become faster or slower meanwhile does not decide; only what
// wins there is kept.
class Search {
 public:
  // A tunable without candidates stays as it is.
  using Candidates = std::array<std::vector<std::int64_t>, kTunables>;

  Search(const Tunables& start, Candidates candidates);

  // What is to be measured now; once finished, what is kept.
  const Tunables& trying() const { return trying_; }
  bool finished() const { return stage_ == Stage::finished; }
  // In the last comparison.
  bool comparing() const { return stage_ == Stage::comparing; }

  // The score of trying(): more is better.
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
  std::vector<double> scores_;          // of trying_, or of the beginning's values in the comparison
  std::vector<double> scores_of_best_;  // in the comparison
};

}  // namespace perseus
