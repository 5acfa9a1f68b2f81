// The situation of the shutdown.
#include <deque>
#include <memory>
#include <utility>

#include "common.h"
#include "control/negotiator.h"
#include "simulated_mpi.h"
#include "transport/hierarchy/channel.h"
#include "transport/messages/channel.h"
#include "transport/mpi/connections.h"

namespace perseus::scale {
namespace {

// The control messages between the ranks of one host.
using HostQueues = std::vector<std::deque<ControlMessage>>;

class HostLink final : public ControlChannel {
 public:
  HostLink(HostQueues& queues, int index) : queues_(queues), index_(index) {}
  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(queues_.size()); }
  void send(int to, std::string bytes) override {
    queues_[static_cast<std::size_t>(to)].push_back({index_, std::move(bytes)});
  }
  bool receive(ControlMessage& message) override {
    auto& queue = queues_[static_cast<std::size_t>(index_)];
    if (queue.empty()) return false;
    message = std::move(queue.front());
    queue.pop_front();
    return true;
  }
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return false; }

 private:
  HostQueues& queues_;
  int index_;
  Doorbell doorbell_;
};

struct LeavingRank {
  LeavingRank(const Tree& tree) : negotiator(tree, {}) {}
  Negotiator negotiator;
  messages::ClosingChannels closing;
  std::unique_ptr<ControlChannel> channel;
};

}  // namespace

Situation shutdown(int ranks) {
  Costs costs(ranks, kRanksPerHost);
  SimulatedMpi mpi(costs);
  const Topology topology(0, costs.hosts());
  const auto all = everybody(ranks);
  const hierarchy::Layout layout(topology, all);
  const auto leaders = mpi.add_group(layout.rail_members(0));
  std::vector<HostQueues> hosts(static_cast<std::size_t>(topology.host_count()), HostQueues(kRanksPerHost));
  std::deque<LeavingRank> job;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& each = job.emplace_back(make_tree(rank, costs.hosts(), all));
    const auto channel = [&](mpi::Comm comm) {
      return std::make_unique<messages::MessageChannel>(mpi::make_network(mpi.api(rank), {comm}),
                                                        messages::WaitOptions{}, each.closing);
    };
    each.channel = std::make_unique<hierarchy::HierarchicalChannel>(
        layout, rank,
        std::make_unique<HostLink>(hosts[static_cast<std::size_t>(costs.host_of(rank))], rank % kRanksPerHost),
        rank % kRanksPerHost == 0 ? channel(leaders) : nullptr, channel(mpi.api(rank).world()));
    costs.timed(rank, [&] { each.negotiator.leave(); });
  }
  const Negotiator::Clock::time_point now{};
  for (bool busy = true; busy;) {
    busy = false;
    for (int rank = 0; rank < ranks; ++rank) {
      costs.timed(rank, [&] {
        auto& each = job[static_cast<std::size_t>(rank)];
        for (ControlMessage message; each.channel->receive(message); busy = true) {
          each.negotiator.receive(message.from, message.bytes, now);
        }
        if (!each.negotiator.has_news()) return;
        for (auto& message : each.negotiator.flush(now)) each.channel->send(message.to, std::move(message.bytes));
        busy = true;
      });
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    costs.timed(rank, [&] { job[static_cast<std::size_t>(rank)].channel.reset(); });
  }
  for (bool all_closed = false; !all_closed;) {
    all_closed = true;
    for (int rank = 0; rank < ranks; ++rank) {
      costs.timed(rank, [&] { all_closed = job[static_cast<std::size_t>(rank)].closing.sweep() == 0 && all_closed; });
    }
  }
  return situation("the shutdown", costs);
}

}  // namespace perseus::scale
