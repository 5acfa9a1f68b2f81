#include "transport/mpi/fabric.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory/lent_memory.h"
#include "base/wait/doorbell.h"
#include "base/wait/thread.h"
#include "transport/messages/channel.h"
#include "transport/messages/transport.h"
#include "transport/mpi/abandonable_call.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/connections.h"
#include "transport/mpi/process.h"

namespace perseus::mpi {
namespace {

constexpr std::chrono::microseconds kLook{100'000};

// The note of a rank that takes no turn. It is no set of numbers, whose last byte is not 0.
constexpr std::string_view kBusy("\0", 1);

std::vector<Comm> make_communicators(Api& api, Comm job, int streams) {
  std::vector<Comm> comms{api.duplicate(job)};
  for (int number = 0; number < streams; ++number) comms.push_back(api.duplicate_as_stream(job, number));
  return comms;
}

class MpiFabric final : public Fabric {
 public:
  MpiFabric(std::shared_ptr<Connections> connections, messages::ClosingChannels& closing_channels,
            const messages::WaitOptions& options)
      : connections_(std::move(connections)), closing_channels_(closing_channels), options_(options) {
    thread_ = start_thread([this] { run(); });
  }
  ~MpiFabric() override { MpiFabric::end_watch(); }

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    const Group group{.members = {members.begin(), members.end()}};
    return std::move(connect_groups({&group, 1}, exchange).front());
  }

  std::vector<Link> connect_groups(std::span<const Group> groups, const BootstrapAllgather& exchange) override {
    closing_channels_.sweep();
    const auto [turn, used] = take_turn(exchange);
    const auto numbers = choose_numbers(groups, used);
    if (std::ranges::any_of(numbers, [this](int number) { return number >= connections_->most_groups(); })) {
      throw no_number_left();
    }
    std::vector<Link> links;
    links.reserve(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) links.push_back(link_of(groups[i], numbers[i]));
    return links;
  }

  // Intel MPI's streams belong to one thread each, and without streams the threads of an MPI wait for one another.
  bool works_beside() const override {
    return connections_->streams() > 1 && connections_->api().family() != Family::intel;
  }

  // Memory from here is ordinary, because peers cannot reach it.
  void* allocate(std::size_t bytes) override { return allocate_lent(bytes, true); }
  void release(void* memory) override { free_lent(memory); }

  void make_progress() override {
    if (options_.liveness->any_lost() || connections_->api().finalized()) return;
    try {
      connections_->poll();
    } catch (const Error&) {
      // The next call of a transport or a channel reports the failure.
    }
  }

  void end_watch() override {
    stop_.store(true, std::memory_order_release);
    stopping_.notify();
    if (thread_.joinable()) thread_.join();
  }

  std::string description() const override {
    const int count = connections_->streams();
    const auto streams = count == 1 ? "" : ", " + std::to_string(count) + " streams";
    return "mpi (" + connections_->api().version() + streams + ")";
  }

 private:
  // Looks for the messages of idle engines, which sleep.
  void run() {
    pthread_setname_np(pthread_self(), "perseus-mpi");
    for (;;) {
      const auto seen = stopping_.notifications();
      if (stop_.load(std::memory_order_acquire)) return;
      make_progress();
      stopping_.wait(seen, Sleeper::engine, kLook);
    }
  }

  struct Turn {
    std::unique_lock<std::mutex> lock;
    std::map<int, Numbers> used;  // by rank
  };

  // Returns the numbers that the ranks use. Two threads that connect groups at the same time would choose the same
  // ones, so all ranks let a thread in, or none.
  Turn take_turn(const BootstrapAllgather& exchange) {
    const auto own = std::to_string(connections_->rank()) + ' ';
    for (;;) {
      Turn turn{std::unique_lock(connecting_, std::try_to_lock), {}};
      const auto notes = exchange(own + (turn.lock ? connections_->numbers() : std::string(kBusy)));
      for (const auto& note : notes) {
        const auto space = note.find(' ');
        turn.used[std::stoi(note.substr(0, space))] = note.substr(space + 1);
      }
      if (std::ranges::none_of(turn.used, [](const auto& each) { return each.second == kBusy; })) return turn;
    }
  }

  Link link_of(const Group& group, int number) {
    Link link;
    const auto& members = group.members;
    if (std::ranges::find(members, connections_->rank()) == members.end()) return link;
    link.transport =
        std::make_unique<messages::MessageTransport>(make_network(connections_, members, number), options_);
    if (group.has_control) {
      link.control = std::make_unique<messages::MessageChannel>(make_network(connections_, members, number), options_,
                                                                closing_channels_);
    }
    return link;
  }

  Error no_number_left() const {
    return {ErrorKind::unavailable,
            "process set: MPI has no tags left for its messages. The largest tag of " + connections_->api().version() +
                " allows " + std::to_string(connections_->most_groups()) +
                " groups of ranks at a time, and a process set is up to four of them. Remove process sets that are " +
                "no longer needed, or set PERSEUS_HOST_TRANSPORT=ucx, which has more"};
  }

  std::shared_ptr<Connections> connections_;
  messages::ClosingChannels& closing_channels_;
  messages::WaitOptions options_;
  std::mutex connecting_;  // held by the thread that connects groups
  std::atomic<bool> stop_{false};
  Doorbell stopping_;
  std::thread thread_;
};

// Returns the smallest number of streams of all ranks, because MPI on one host may have more than on another.
int common_streams(Bootstrap& bootstrap) {
  auto least = stream_count();
  for (const auto& count : bootstrap.allgather(std::to_string(least))) least = std::min(least, std::stoi(count));
  return least;
}

}  // namespace

std::unique_ptr<Fabric> connect_by(Api& api, Comm job, int streams, messages::ClosingChannels& closing_channels,
                                   const messages::WaitOptions& options, std::chrono::milliseconds limit) {
  try {
    auto comms = run_abandonable<std::vector<Comm>>(
        [&api, job, streams] { return make_communicators(api, job, streams); }, options.liveness, {.limit = limit});
    return std::make_unique<MpiFabric>(std::make_shared<Connections>(api, std::move(comms), &sends()), closing_channels,
                                       options);
  } catch (const Error& error) {
    if (may_still_run(error)) mark_broken(error.what());
    throw;
  }
}

std::unique_ptr<Fabric> make_mpi_fabric(Bootstrap& bootstrap, Liveness& liveness, std::chrono::microseconds spin) {
  const auto* mpi = dynamic_cast<MpiBootstrap*>(&bootstrap);
  if (mpi == nullptr) return nullptr;
  const messages::WaitOptions options{.liveness = &liveness, .spin = spin};
  liveness.on_lost([&liveness] {
    // A later session can use MPI again unless a process has ended.
    if (!liveness.may_live()) sends().lose(liveness.status().text());
  });
  return connect_by(mpi->api(), mpi->comm(), common_streams(bootstrap), closing_channels(), options, mpi->limit());
}

bool is_mpi(const Bootstrap& bootstrap) { return dynamic_cast<const MpiBootstrap*>(&bootstrap) != nullptr; }

bool is_intel(const Bootstrap& bootstrap) {
  const auto* mpi = dynamic_cast<const MpiBootstrap*>(&bootstrap);
  return mpi != nullptr && mpi->api().family() == Family::intel;
}

}  // namespace perseus::mpi
