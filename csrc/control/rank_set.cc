#include "control/rank_set.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace perseus {

void RankSet::add(const RankSet& other) {
  std::vector<Run> both;
  both.reserve(runs_.size() + other.runs_.size());
  std::merge(runs_.begin(), runs_.end(), other.runs_.begin(), other.runs_.end(), std::back_inserter(both),
             [](const Run& a, const Run& b) { return a.first < b.first; });
  runs_.clear();
  for (const auto& run : both) append(run);
}

void RankSet::append(Run run) {
  if (runs_.empty() || runs_.back().end < run.first) {
    runs_.push_back(run);
  } else {
    runs_.back().end = std::max(runs_.back().end, run.end);
  }
}

void RankSet::add_run(Run run) {
  if (runs_.empty() || runs_.back().first <= run.first) return append(run);
  RankSet more;
  more.append(run);
  add(more);
}

void RankSet::remove(const RankSet& other) {
  std::vector<Run> rest;
  auto cut = other.runs_.begin();
  for (auto run : std::exchange(runs_, {})) {
    while (cut != other.runs_.end() && cut->end <= run.first) ++cut;
    for (auto next = cut; next != other.runs_.end() && next->first < run.end; ++next) {
      if (run.first < next->first) rest.push_back({run.first, next->first});
      run.first = std::max(run.first, next->end);
    }
    if (run.first < run.end) rest.push_back(run);
  }
  runs_ = std::move(rest);
}

bool RankSet::contains(int rank) const {
  const auto above = std::ranges::upper_bound(runs_, rank, {}, &Run::first);
  return above != runs_.begin() && rank < std::prev(above)->end;
}

std::size_t RankSet::size() const {
  std::size_t count = 0;
  for (const auto& run : runs_) count += static_cast<std::size_t>(run.end - run.first);
  return count;
}

std::vector<int> RankSet::ranks() const {
  std::vector<int> all;
  all.reserve(size());
  for (const auto& run : runs_) {
    for (int rank = run.first; rank < run.end; ++rank) all.push_back(rank);
  }
  return all;
}

}  // namespace perseus
