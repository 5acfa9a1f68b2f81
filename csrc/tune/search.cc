#include "tune/search.h"

#include <algorithm>
#include <utility>

namespace perseus {

namespace {

constexpr std::size_t kSamples = 3;      // samples of each candidate
constexpr std::size_t kComparisons = 5;  // samples of both settings in the last comparison
constexpr double kClearlyBetter = 1.02;  // a smaller gain counts as noise
constexpr double kBetterInTheEnd = 1.005;

double median_of(std::vector<double> scores) {
  const auto middle = scores.begin() + static_cast<std::ptrdiff_t>(scores.size() / 2);
  std::nth_element(scores.begin(), middle, scores.end());
  return *middle;
}

}  // namespace

Search::Search(const Tunables& start, Candidates candidates)
    : start_(start), best_(start), trying_(start), candidates_(std::move(candidates)) {
  for (std::size_t i = 0; i < kTunables; ++i) std::erase(candidates_[i], start_[i]);
}

std::int64_t Search::most_samples() const {
  std::size_t values = 1;
  for (const auto& candidates : candidates_) values += candidates.size();
  return static_cast<std::int64_t>(values * kSamples + 2 * kComparisons);
}

void Search::add(double score) {
  switch (stage_) {
    case Stage::start:
    case Stage::axis: {
      scores_.push_back(score);
      if (scores_.size() < kSamples) return;
      const auto median = median_of(std::exchange(scores_, {}));
      if (stage_ == Stage::start || median > best_score_ * kClearlyBetter) {
        best_score_ = median;
        best_ = trying_;
      }
      stage_ = Stage::axis;
      next_candidate();
      return;
    }
    case Stage::comparing:
      (trying_ == best_ ? scores_of_best_ : scores_).push_back(score);
      compare();
      return;
    case Stage::finished: return;
  }
}

void Search::next_candidate() {
  while (axis_ < kTunables && candidate_ == candidates_[axis_].size()) {
    ++axis_;
    candidate_ = 0;
  }
  if (axis_ < kTunables) {
    trying_ = best_;
    trying_[axis_] = candidates_[axis_][candidate_++];
    return;
  }
  stage_ = best_ == start_ ? Stage::finished : Stage::comparing;
  trying_ = start_;
}

void Search::compare() {
  trying_ = trying_ == best_ ? start_ : best_;
  if (scores_of_best_.size() < kComparisons) return;
  stage_ = Stage::finished;
  std::size_t won = 0;
  for (std::size_t i = 0; i < kComparisons; ++i) won += scores_of_best_[i] > scores_[i] ? 1 : 0;
  const bool better = median_of(scores_of_best_) > median_of(scores_) * kBetterInTheEnd;
  trying_ = better && won > kComparisons / 2 ? best_ : start_;
}

}  // namespace perseus
