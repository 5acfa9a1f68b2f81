// Situations of the negotiation alone.
#include <algorithm>

#include "common.h"
#include "negotiating_job.h"

namespace perseus::scale {

using std::chrono::milliseconds;

std::vector<Situation> steps(int ranks, int tensors) {
  constexpr int kSteps = 5;
  Costs costs(ranks, kRanksPerHost);
  NegotiatingJob job(make_trees(costs), costs);
  const auto requests = layers(tensors);
  const auto step = [&] {
    costs.reset();
    require(job.step(requests, ranks) == requests.size());
  };
  step();
  const auto first = situation("the first step", costs);
  auto least = std::chrono::nanoseconds::max();
  for (int i = 0; i < kSteps; ++i) {
    step();
    least = std::min(least, costs.root().time);
  }
  auto steady = situation("a steady step", costs);
  steady.root.time = least;
  return {steady, first};
}

std::vector<Situation> one_straggler(int ranks, int tensors) {
  constexpr milliseconds kWarning{60000};
  Costs costs(ranks, kRanksPerHost);
  NegotiatingJob job(make_trees(costs), costs, {.stalls = {.warning = kWarning}});
  const auto requests = layers(tensors);
  require(job.step(requests, ranks) == requests.size());
  require(job.step(requests, ranks - 1) == 0);
  std::chrono::nanoseconds longest{0};
  costs.reset();
  for (int i = 0; i < 10; ++i) {
    job.now += milliseconds(100);
    longest = std::max(longest, job.check_stalls());
    require(job.settle() == 0);
  }
  auto check = situation("one straggler: a check for stalls", costs);
  check.root.time = longest;
  job.now += kWarning;
  costs.reset();
  std::size_t warnings = 0;
  for (int i = 0; i < 2; ++i) {
    job.check_stalls();
    warnings += job.settle();
  }
  require(warnings == requests.size());
  return {check, situation("one straggler: the warning", costs)};
}

Situation process_sets(int ranks, int sets) {
  Costs costs(ranks, kRanksPerHost);
  const auto trees = make_trees(costs);
  const auto request = layers(1);
  for (int set = 0; set < sets; ++set) {
    NegotiatingJob job(trees, costs);
    require(job.step(request, ranks) == 1);
  }
  return situation("200 process sets", costs);
}

}  // namespace perseus::scale
