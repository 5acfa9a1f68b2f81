#include "transport/mpi/fabric.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/lent_memory.h"
#include "transport/messages/channel.h"
#include "transport/messages/transport.h"
#include "transport/mpi/abandonable_call.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/network.h"
#include "transport/mpi/process.h"

namespace perseus::mpi {
namespace {

constexpr int kControlTag = 2;
// Every MPI has the tags from 0 up to here.
constexpr int kLastTag = 32767;

// A message of each rank to the others before they make communicators.
struct Note {
  int world_rank = 0;
  int number = 0;  // of its calls of connect_groups()
  int one_call_at_a_time = 0;
};

std::vector<Note> exchange_notes(const Note& mine, const BootstrapAllgather& exchange) {
  std::vector<Note> notes;
  for (const auto& bytes : exchange({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    if (bytes.size() != sizeof mine) {
      throw Error(ErrorKind::transport, "process set: check that all ranks run the same version of perseus_like");
    }
    std::memcpy(&notes.emplace_back(), bytes.data(), sizeof mine);
  }
  return notes;
}

std::vector<Comm> make_streams(Api& api, Comm world, int count, std::span<const int> members, int tag) {
  const auto first = api.create(world, members, tag);
  if (count == 1) return {first};
  std::vector<Comm> streams;
  streams.reserve(static_cast<std::size_t>(count));
  for (int number = 0; number < count; ++number) streams.push_back(api.duplicate_as_stream(first, number));
  api.free(first);
  return streams;
}

class MpiFabric final : public Fabric {
 public:
  MpiFabric(Api& api, Comm job, int streams, messages::ClosingChannels& closing_channels,
            const messages::WaitOptions& options, std::chrono::milliseconds limit)
      : api_(api),
        closing_channels_(closing_channels),
        options_(options),
        limit_(limit),
        streams_(streams),
        world_comm_(made<Comm>([api = &api, job] { return api->duplicate(job); })),
        world_(make_network(api, {world_comm_}, &sends()), options_) {}

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    const std::vector<int> group(members.begin(), members.end());
    return std::move(connect_groups({&group, 1}, exchange).front());
  }

  // MPI's calls wait for the other members, and may keep this rank's other threads out of MPI for so long. So the ranks
  // meet first.
  std::vector<Link> connect_groups(std::span<const std::vector<int>> groups,
                                   const BootstrapAllgather& exchange) override {
    const auto notes = exchange_notes({world_.rank(), connected_++, api_.is_multithreaded() ? 0 : 1}, exchange);
    const auto turn = std::ranges::any_of(notes, &Note::one_call_at_a_time) ? take_turn(exchange) : Turn();
    closing_channels_.sweep();
    std::vector<Link> links;
    links.reserve(groups.size());
    for (const auto& members : groups) {
      const bool is_member = std::ranges::find(members, world_.rank()) != members.end();
      links.push_back(is_member ? connect_members(members, tag_of(members.front(), notes)) : Link());
    }
    return links;
  }

  // Intel MPI's streams belong to one thread each, and without streams the threads of an MPI wait for one another.
  bool works_beside() const override { return streams_ > 1 && api_.family() != Family::intel; }

  // Memory from here is ordinary, because peers cannot reach it.
  void* allocate(std::size_t bytes) override { return allocate_lent(bytes, true); }
  void release(void* memory) override { free_lent(memory); }

  void make_progress() override {
    if (options_.liveness->any_lost() || api_.finalized()) return;
    try {
      Arrival arrival;
      api_.probe(world_comm_, kControlTag, arrival);
    } catch (const Error&) {
      // The next call of a transport or a channel reports the failure.
    }
  }

  std::string description() const override {
    const auto streams = streams_ == 1 ? "" : ", " + std::to_string(streams_) + " streams";
    return "mpi (" + api_.version() + streams + ")";
  }

 private:
  using Turn = std::unique_lock<std::mutex>;

  // With an MPI that takes one call at a time, two threads that make communicators in another order on each rank would
  // wait for one another. Here, all ranks let the thread in, or none.
  Turn take_turn(const BootstrapAllgather& exchange) {
    for (;;) {
      Turn turn(making_communicators_, std::try_to_lock);
      const auto others = exchange(turn.owns_lock() ? "" : "busy");
      if (std::ranges::all_of(others, &std::string::empty)) return turn;
    }
  }

  // Threads make communicators of the same parent at once, so each call has a tag of its own.
  int tag_of(int first_member, const std::vector<Note>& notes) const {
    const int per_rank = std::max(kLastTag / world_.size(), 1);
    const auto note = std::ranges::find(notes, first_member, &Note::world_rank);
    if (note == notes.end()) throw Error(ErrorKind::transport, "process set: its first rank has not met the others");
    return (first_member * per_rank + note->number % per_rank) % kLastTag;
  }

  Link connect_members(const std::vector<int>& members, int tag) {
    auto comms = made<std::vector<Comm>>([&api = api_, world = world_comm_, streams = streams_, members, tag] {
      auto all = make_streams(api, world, streams, members, tag);
      all.push_back(api.create(world, members, tag));
      return all;
    });
    const auto control = comms.back();
    comms.pop_back();
    return {std::make_unique<messages::MessageTransport>(make_network(api_, std::move(comms), &sends()), options_),
            std::make_unique<messages::MessageChannel>(make_network(api_, {control}, &sends()), options_,
                                                       closing_channels_)};
  }

  // Runs a call that waits for other ranks.
  template <class Result, class Call>
  Result made(const Call& call) const {
    try {
      return run_abandonable<Result>(call, options_.liveness, {.limit = limit_});
    } catch (const Error& error) {
      if (may_still_run(error)) mark_broken(error.what());
      throw;
    }
  }

  Api& api_;
  messages::ClosingChannels& closing_channels_;
  messages::WaitOptions options_;
  std::chrono::milliseconds limit_;  // for making communicators
  int streams_;
  std::atomic<int> connected_{0};  // calls of connect_groups()
  std::mutex making_communicators_;
  Comm world_comm_;
  messages::Communicator world_;
};

// Returns the smallest number of streams of all ranks, because MPI on one host may have more than on another.
int common_streams(Bootstrap& bootstrap) {
  auto least = stream_count();
  for (const auto& count : bootstrap.allgather(std::to_string(least))) least = std::min(least, std::stoi(count));
  return least;
}

}  // namespace

std::unique_ptr<Fabric> make_mpi_fabric(Bootstrap& bootstrap, Liveness& liveness, std::chrono::microseconds spin) {
  const auto* mpi = dynamic_cast<MpiBootstrap*>(&bootstrap);
  if (mpi == nullptr) return nullptr;
  const messages::WaitOptions options{.liveness = &liveness, .spin = spin};
  liveness.on_lost([&liveness] {
    // A later session can use MPI again unless a process has ended.
    if (!liveness.may_live()) sends().lose(liveness.status().text());
  });
  return std::make_unique<MpiFabric>(mpi->api(), mpi->comm(), common_streams(bootstrap), closing_channels(), options,
                                     mpi->limit());
}

bool is_mpi(const Bootstrap& bootstrap) { return dynamic_cast<const MpiBootstrap*>(&bootstrap) != nullptr; }

bool is_intel(const Bootstrap& bootstrap) {
  const auto* mpi = dynamic_cast<const MpiBootstrap*>(&bootstrap);
  return mpi != nullptr && mpi->api().family() == Family::intel;
}

}  // namespace perseus::mpi
