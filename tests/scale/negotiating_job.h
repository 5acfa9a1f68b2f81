// Runs the negotiators of a job of thousands of ranks in one thread. Only the links between them are replaced: in each
// round, every rank gets what its neighbours sent in the round before, and sends what it has to say.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "control/negotiator.h"

namespace perseus::scale {

// The messages between hosts, and the processor time, of one rank.
struct Cost {
  int sent = 0;
  int received = 0;
  std::size_t bytes_sent = 0, bytes_received = 0;
  std::chrono::nanoseconds time{0};

  int messages() const { return sent + received; }
  std::size_t bytes() const { return bytes_sent + bytes_received; }
};

class NegotiatingJob {
 public:
  using Clock = Negotiator::Clock;

  NegotiatingJob(int size, int ranks_per_host, const NegotiatorOptions& options) : options_(options) {
    std::vector<int> world(static_cast<std::size_t>(size));
    std::iota(world.begin(), world.end(), 0);
    for (int rank = 0; rank < size; ++rank) hosts_.push_back(rank / ranks_per_host);
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(make_tree(rank, hosts_, world), options);
    costs_.resize(ranks_.size());
    inboxes_.resize(ranks_.size());
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Negotiator& rank(int number) { return ranks_[static_cast<std::size_t>(number)]; }
  const Cost& root() const { return costs_.front(); }
  // The rank with most messages between hosts, besides the root.
  const Cost& busiest() const {
    return *std::max_element(costs_.begin() + 1, costs_.end(),
                             [](const auto& a, const auto& b) { return a.messages() < b.messages(); });
  }
  int rounds() const { return rounds_; }
  void reset_costs() {
    costs_.assign(costs_.size(), {});
    rounds_ = 0;
  }

  void submit(int number, const std::vector<Request>& requests) {
    timed(number, [&] {
      for (const auto& request : requests) rank(number).submit(request, now);
    });
  }

  // Calls check_stalls() of every rank, and returns the root's processor time for it.
  std::chrono::nanoseconds check_stalls() {
    for (int number = 1; number < size(); ++number) rank(number).check_stalls(now);
    const auto before = root().time;
    timed(0, [&] { rank(0).check_stalls(now); });
    return root().time - before;
  }

  // Exchanges messages until no rank has news. Returns the number of decisions that rank 0 has taken.
  std::size_t settle() {
    std::size_t decisions = 0;
    for (bool busy = true; busy;) {
      busy = false;
      std::vector<std::vector<Message>> arriving(ranks_.size());
      std::swap(arriving, inboxes_);
      for (int number = 0; number < size(); ++number) {
        const auto& inbox = arriving[static_cast<std::size_t>(number)];
        std::vector<Negotiator::Outgoing> outgoing;
        timed(number, [&] {
          for (const auto& message : inbox) rank(number).receive(message.from, message.bytes, now);
          if (rank(number).has_news()) outgoing = rank(number).flush(now);
          for (auto plan = rank(number).take_decisions(); !plan.empty(); plan = rank(number).take_decisions()) {
            if (number == 0) decisions += plan.size();
          }
        });
        for (auto& message : outgoing) send(number, std::move(message));
        busy = busy || !outgoing.empty();
      }
      rounds_ += busy ? 1 : 0;
    }
    return decisions;
  }

  Clock::time_point now = Clock::time_point(std::chrono::hours(1));

 private:
  struct Message {
    int from;
    std::string bytes;
  };

  void send(int from, Negotiator::Outgoing message) {
    const auto source = static_cast<std::size_t>(from), target = static_cast<std::size_t>(message.to);
    if (hosts_[source] != hosts_[target]) {
      ++costs_[source].sent;
      ++costs_[target].received;
      costs_[source].bytes_sent += message.bytes.size();
      costs_[target].bytes_received += message.bytes.size();
    }
    inboxes_[target].push_back({from, std::move(message.bytes)});
  }

  template <typename Function>
  void timed(int number, const Function& function) {
    if (number != 0) return function();
    const auto begin = thread_time();
    function();
    costs_.front().time += thread_time() - begin;
  }

  static std::chrono::nanoseconds thread_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  NegotiatorOptions options_;
  std::vector<int> hosts_;
  std::deque<Negotiator> ranks_;
  std::vector<Cost> costs_;
  std::vector<std::vector<Message>> inboxes_;
  int rounds_ = 0;
};

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

}  // namespace perseus::scale
