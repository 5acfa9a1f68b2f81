#include "link.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "bootstrap/mpi.h"
#include "negotiating_job.h"
#include "transport/fabric.h"

namespace perseus::scale {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 2000, kBurst = 100;
const std::string kMessage(16, 'm');  // about as long as a report of a known request

void receive(ControlChannel& channel, int count) {
  for (ControlMessage message; count > 0;) count -= channel.receive(message) ? 1 : 0;
}

// Returns the time that a tenth of all times do not exceed: other programs of the machine only add to times.
Microseconds usual(std::vector<Microseconds> times) {
  const auto tenth = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 10);
  std::ranges::nth_element(times, tenth);
  return *tenth;
}

// Returns the usual time that a call takes on this rank.
template <typename Call>
Microseconds usual_time(int rounds, const Call& call) {
  std::vector<Microseconds> times;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    call();
    times.emplace_back(Clock::now() - begin);
  }
  return usual(std::move(times));
}

struct Message {
  Microseconds arrival;
  int from, to;
  std::string bytes;
  bool operator>(const Message& other) const { return arrival > other.arrival; }
};

}  // namespace

std::optional<LinkTimes> measure_link(const std::string& launcher, const std::string& python_prefix) {
  MpiJob job;
  job.launcher.kind = launcher_kind(launcher);
  job.environment.python_prefix = python_prefix;
  job.environment.lookup = [](std::string_view name) -> std::optional<std::string> {
    const auto* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  const auto bootstrap = make_mpi_bootstrap(job);
  const int rank = bootstrap->rank(), other = 1 - rank;
  LinkTimes times;
  {
    Liveness liveness;
    const auto fabric = make_fabric(*bootstrap, Topology(rank, {0, 1}), liveness);
    const std::array<int, 2> both{0, 1};
    const auto link = fabric->connect(both, [&](std::string_view mine) { return bootstrap->allgather(mine); });
    auto& channel = *link.control;
    const auto round_trip = usual_time(kRounds, [&] {
      if (rank == 0) channel.send(other, kMessage);
      receive(channel, 1);
      if (rank != 0) channel.send(other, kMessage);
    });
    // Both send a burst, and receive the other's once it has arrived.
    std::vector<Microseconds> sends, receives;
    for (int round = 0; round < kRounds / kBurst; ++round) {
      sends.push_back(usual_time(1, [&] {
        for (int i = 0; i < kBurst; ++i) channel.send(other, kMessage);
      }));
      static_cast<void>(link.transport->barrier());
      receives.push_back(usual_time(1, [&] { receive(channel, kBurst); }));
      static_cast<void>(link.transport->barrier());
    }
    times.send = usual(sends) / kBurst;
    times.receive = usual(receives) / kBurst;
    times.delay = std::max(Microseconds(0), round_trip / 2 - times.send - times.receive);
  }
  finalize_mpi(0);
  return rank == 0 ? std::optional(times) : std::nullopt;
}

Microseconds predicted_step(int hosts, const LinkTimes& link) {
  Costs costs(hosts, 1);
  NegotiatingJob job(make_trees(costs), costs);
  const auto requests = layers(1);
  for (int i = 0; i < 2; ++i) job.step(requests, hosts);
  std::vector<Microseconds> free(static_cast<std::size_t>(hosts));  // from when on a leader can handle messages
  std::priority_queue<Message, std::vector<Message>, std::greater<>> in_flight;
  Microseconds end{0};
  const auto progress = [&](int rank) {
    auto& now = free[static_cast<std::size_t>(rank)];
    if (job.rank(rank).has_news()) {
      for (auto& message : job.rank(rank).flush(job.now)) {
        now += link.send;
        in_flight.push({now + link.delay, rank, message.to, std::move(message.bytes)});
      }
    }
    if (!job.rank(rank).take_decisions().empty()) end = std::max(end, now);
  };
  for (int rank = 0; rank < hosts; ++rank) {
    job.rank(rank).submit(requests.front(), job.now);
    progress(rank);
  }
  while (!in_flight.empty()) {
    const auto message = in_flight.top();
    in_flight.pop();
    auto& now = free[static_cast<std::size_t>(message.to)];
    now = std::max(now, message.arrival) + link.receive;
    job.rank(message.to).receive(message.from, message.bytes, job.now);
    progress(message.to);
  }
  return end;
}

}  // namespace perseus::scale
