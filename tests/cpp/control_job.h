// The negotiators of a whole job in one thread: messages travel in random order between neighbours, time is made up.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "control/negotiator.h"
#include "control_requests.h"

namespace perseus::testing {

class Job {
 public:
  using Kind = Decision::Kind;

  // World rank of group rank r is `first_world_rank` + r.
  explicit Job(const std::vector<int>& hosts, NegotiatorOptions options = {}, unsigned seed = 1, int fan_out = 2,
               int first_world_rank = 0)
      : random_(seed) {
    std::vector<int> world(hosts.size());
    std::iota(world.begin(), world.end(), first_world_rank);
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      trees_.push_back(make_tree(rank, hosts, world, fan_out));
      ranks_.emplace_back(trees_.back(), options);
    }
    decisions_.resize(hosts.size());
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Negotiator& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  std::mt19937& random() { return random_; }
  int random_below(std::size_t end) { return static_cast<int>(random_() % end); }

  void submit(int r, const Request& request) { rank(r).submit(request, now); }
  void submit_all(const Request& request) {
    for (int r = 0; r < size(); ++r) submit(r, request);
  }

  // One random step: somebody speaks, or hears. False if there is nothing to do.
  bool step() {
    std::vector<int> speakers;
    for (int r = 0; r < size(); ++r) {
      if (rank(r).has_news()) speakers.push_back(r);
    }
    std::vector<std::pair<int, int>> ways;
    for (const auto& [way, messages] : under_way_) {
      if (!messages.empty()) ways.push_back(way);
    }
    if (speakers.empty() && ways.empty()) return false;
    const auto choice = static_cast<std::size_t>(random_below(speakers.size() + ways.size()));
    if (choice < speakers.size()) {
      speak(speakers[choice]);
    } else {
      hear(ways[choice - speakers.size()]);
    }
    return true;
  }

  void settle() {
    while (step()) {
    }
  }

  // What rank r was told since it was asked last.
  std::vector<Decision> take(int r) { return std::exchange(decisions_[static_cast<std::size_t>(r)], {}); }

  // What all ranks were told, which must be the same; requests known by id are filled in.
  std::vector<Decision> take_all() {
    settle();
    const auto first = take(0);
    for (int r = 1; r < size(); ++r) EXPECT_EQ(told(take(r)), told(first)) << "rank " << r;
    return first;
  }

  static std::vector<std::string> told(const std::vector<Decision>& decisions) {
    std::vector<std::string> all;
    for (const auto& d : decisions) {
      Plan plan;
      plan.decisions = {d};
      plan.decisions.front().cached = false;
      all.push_back(encode(plan));
    }
    return all;
  }

  std::size_t bytes_sent = 0;
  Negotiator::Clock::time_point now{};

 private:
  void speak(int r) {
    for (auto& message : rank(r).flush(now)) {
      bytes_sent += message.bytes.size();
      under_way_[{r, message.to}].push_back(std::move(message.bytes));
    }
    collect(r);
  }

  void hear(const std::pair<int, int>& way) {
    auto& messages = under_way_[way];
    rank(way.second).receive(way.first, messages.front(), now);
    messages.pop_front();
    collect(way.second);
  }

  void collect(int r) {
    for (auto plan = rank(r).take_decisions(); !plan.empty(); plan = rank(r).take_decisions()) {
      for (auto& decision : plan) {
        if (decision.cached) decision.request = rank(r).agreed(decision.id);
        decisions_[static_cast<std::size_t>(r)].push_back(std::move(decision));
      }
    }
  }

  std::mt19937 random_;
  std::vector<Tree> trees_;
  std::deque<Negotiator> ranks_;
  std::map<std::pair<int, int>, std::deque<std::string>> under_way_;
  std::vector<std::vector<Decision>> decisions_;
};

}  // namespace perseus::testing
