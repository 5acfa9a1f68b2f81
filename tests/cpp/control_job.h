// Runs the negotiators of a whole job in one thread, with messages in random order between neighbours and invented
// time.
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

class ControlJob {
 public:
  using Kind = Decision::Kind;

  // World rank of group rank r is `first_world_rank` + r.
  explicit ControlJob(const std::vector<int>& hosts, NegotiatorOptions options = {}, unsigned seed = 1, int fan_out = 2,
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

  // Makes one random step: a rank sends, or a message is delivered. Returns false if there is nothing to do.
  bool step() {
    std::vector<int> senders;
    for (int r = 0; r < size(); ++r) {
      if (rank(r).has_news()) senders.push_back(r);
    }
    std::vector<std::pair<int, int>> routes;
    for (const auto& [route, messages] : in_flight_) {
      if (!messages.empty()) routes.push_back(route);
    }
    if (senders.empty() && routes.empty()) return false;
    const auto choice = static_cast<std::size_t>(random_below(senders.size() + routes.size()));
    if (choice < senders.size()) {
      send(senders[choice]);
    } else {
      deliver(routes[choice - senders.size()]);
    }
    return true;
  }

  void settle() {
    while (step()) {
    }
  }

  // Returns the decisions of rank r since the last call.
  std::vector<Decision> take(int r) { return std::exchange(decisions_[static_cast<std::size_t>(r)], {}); }

  // Returns the decisions of all ranks, which must be the same, with the requests of cached ids.
  std::vector<Decision> take_all() {
    settle();
    const auto first = take(0);
    for (int r = 1; r < size(); ++r) EXPECT_EQ(texts_of(take(r)), texts_of(first)) << "rank " << r;
    return first;
  }

  // Returns the only decision of all ranks.
  Decision take_one() {
    const auto decisions = take_all();
    EXPECT_EQ(decisions.size(), 1U);
    return decisions.empty() ? Decision{} : decisions.front();
  }

  static std::vector<std::string> texts_of(const std::vector<Decision>& decisions) {
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
  void send(int r) {
    for (auto& message : rank(r).flush(now)) {
      bytes_sent += message.bytes.size();
      in_flight_[{r, message.to}].push_back(std::move(message.bytes));
    }
    collect(r);
  }

  void deliver(const std::pair<int, int>& route) {
    auto& messages = in_flight_[route];
    rank(route.second).receive(route.first, messages.front(), now);
    messages.pop_front();
    collect(route.second);
  }

  void collect(int r) {
    for (auto plan = rank(r).take_decisions(); !plan.empty(); plan = rank(r).take_decisions()) {
      for (auto& decision : plan) decisions_[static_cast<std::size_t>(r)].push_back(std::move(decision));
    }
  }

  std::mt19937 random_;
  std::vector<Tree> trees_;
  std::deque<Negotiator> ranks_;
  std::map<std::pair<int, int>, std::deque<std::string>> in_flight_;
  std::vector<std::vector<Decision>> decisions_;
};

}  // namespace perseus::testing
