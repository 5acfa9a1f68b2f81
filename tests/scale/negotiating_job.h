// Runs the negotiators of a job of thousands of ranks in one thread. Only the links between them are replaced: in each
// round, every rank gets what its neighbours sent in the round before, and sends what it has to say.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "control/negotiator.h"
#include "cost.h"

namespace perseus::scale {

// Returns the places of all ranks of a job, whose hosts have equally many ranks.
inline std::vector<Tree> make_trees(const Costs& costs) {
  std::vector<int> world(static_cast<std::size_t>(costs.size()));
  std::iota(world.begin(), world.end(), 0);
  const auto hosts = costs.hosts();
  std::vector<Tree> trees;
  for (int rank = 0; rank < costs.size(); ++rank) trees.push_back(make_tree(rank, hosts, world));
  return trees;
}

inline std::vector<Request> layers(int count) {
  std::vector<Request> requests;
  for (int layer = 0; layer < count; ++layer) {
    Request request;
    request.name = "allreduce.layer" + std::to_string(layer) + ".weight";
    request.members = {{DType::float32, {64, 64}}};
    requests.push_back(std::move(request));
  }
  return requests;
}

class NegotiatingJob {
 public:
  using Clock = Negotiator::Clock;

  // Adds what it sends to `costs`, which must outlive this.
  NegotiatingJob(const std::vector<Tree>& trees, Costs& costs, const NegotiatorOptions& options = {})
      : costs_(costs), inboxes_(trees.size()) {
    for (const auto& tree : trees) ranks_.emplace_back(tree, options);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Negotiator& rank(int number) { return ranks_[static_cast<std::size_t>(number)]; }

  // The first `ranks` ranks submit all requests. Returns the number of decisions.
  std::size_t step(const std::vector<Request>& requests, int ranks) {
    for (int number = ranks - 1; number >= 0; --number) {
      costs_.timed(number, [&] {
        for (const auto& request : requests) rank(number).submit(request, now);
      });
    }
    return settle();
  }

  // Calls check_stalls() of every rank, and returns the root's processor time for it.
  std::chrono::nanoseconds check_stalls() {
    for (int number = 1; number < size(); ++number) rank(number).check_stalls(now);
    const auto before = costs_.root().time;
    costs_.timed(0, [&] { rank(0).check_stalls(now); });
    return costs_.root().time - before;
  }

  // Exchanges messages until no rank has news. Returns the number of decisions that rank 0 has taken.
  std::size_t settle() {
    std::size_t decisions = 0;
    for (bool busy = true; busy;) {
      busy = false;
      std::vector<std::vector<ControlMessage>> arriving(ranks_.size());
      std::swap(arriving, inboxes_);
      for (int number = 0; number < size(); ++number) {
        const auto& inbox = arriving[static_cast<std::size_t>(number)];
        std::vector<Negotiator::Outgoing> outgoing;
        costs_.timed(number, [&] {
          for (const auto& message : inbox) rank(number).receive(message.from, message.bytes, now);
          if (rank(number).has_news()) outgoing = rank(number).flush(now);
          for (auto plan = rank(number).take_decisions(); !plan.empty(); plan = rank(number).take_decisions()) {
            if (number == 0) decisions += plan.size();
          }
        });
        for (auto& message : outgoing) {
          costs_.add_messages(number, message.to, 1, message.bytes.size());
          inboxes_[static_cast<std::size_t>(message.to)].push_back({number, std::move(message.bytes)});
        }
        busy = busy || !outgoing.empty();
      }
    }
    return decisions;
  }

  Clock::time_point now = Clock::time_point(std::chrono::hours(1));

 private:
  struct ControlMessage {
    int from;
    std::string bytes;
  };

  Costs& costs_;
  std::deque<Negotiator> ranks_;
  std::vector<std::vector<ControlMessage>> inboxes_;
};

}  // namespace perseus::scale
