#include "transport/mpi/fabric.h"

#include <algorithm>
#include <utility>

#include "base/lent_memory.h"
#include "transport/mpi/abandonable_call.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/channel.h"
#include "transport/mpi/process.h"
#include "transport/mpi/transport.h"

namespace perseus::mpi {
namespace {

constexpr int kTransportTag = 1, kControlTag = 2;

std::vector<Comm> make_streams(Api& api, Comm world, int count, std::span<const int> members) {
  const auto first = api.create(world, members, kTransportTag);
  if (count == 1) return {first};
  std::vector<Comm> streams;
  streams.reserve(static_cast<std::size_t>(count));
  for (int number = 0; number < count; ++number) streams.push_back(api.duplicate_as_stream(first, number));
  api.free(first);
  return streams;
}

class MpiFabric final : public Fabric {
 public:
  MpiFabric(Api& api, Comm job, int streams, ClosingChannels& closing_channels, const WaitOptions& options)
      : closing_channels_(closing_channels),
        options_(options),
        streams_(streams),
        world_(api, made<Comm>([api = &api, job] { return api->duplicate(job); }), options_) {}

  Link connect(std::span<const int> members, const BootstrapAllgather& /*exchange*/) override {
    Link link;
    if (std::find(members.begin(), members.end(), world_.rank()) == members.end()) return link;
    Api& api = world_.api();
    closing_channels_.sweep();
    auto comms = made<std::vector<Comm>>(
        [&api, world = world_.comm(), streams = streams_, ranks = std::vector<int>(members.begin(), members.end())] {
          auto all = make_streams(api, world, streams, ranks);
          all.push_back(api.create(world, ranks, kControlTag));
          return all;
        });
    const auto control = comms.back();
    comms.pop_back();
    link.transport = std::make_unique<MpiTransport>(api, std::move(comms), options_);
    link.control = std::make_unique<MpiChannel>(api, control, options_, closing_channels_);
    return link;
  }

  // Intel MPI's streams belong to one thread each, and without streams the threads of an MPI wait for one another.
  bool works_beside() const override { return streams_ > 1 && world_.api().family() != Family::intel; }

  // Memory from here is ordinary, because peers cannot reach it.
  void* allocate(std::size_t bytes) override { return allocate_lent(bytes, true); }
  void release(void* memory) override { free_lent(memory); }

  void make_progress() override {
    if (options_.liveness->any_lost() || world_.api().finalized()) return;
    try {
      Arrival arrival;
      world_.api().probe(world_.comm(), kControlTag, arrival);
    } catch (const Error&) {
      // The next call of a transport or a channel reports the failure.
    }
  }

  std::string description() const override {
    const auto streams = streams_ == 1 ? "" : ", " + std::to_string(streams_) + " streams";
    return "mpi (" + world_.api().version() + streams + ")";
  }

 private:
  // Runs a call that waits for other ranks. If there is an mpirun, it ends the ranks that wait here for a lost one.
  template <class Result, class Call>
  Result made(const Call& call) const {
    if (!options_.has_no_mpirun) return call();
    try {
      return run_abandonable<Result>(call, options_.liveness, std::chrono::milliseconds(0));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::transport) mark_broken(error.what());
      throw;
    }
  }

  ClosingChannels& closing_channels_;
  WaitOptions options_;
  int streams_;
  Communicator world_;
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
  const WaitOptions options{.liveness = &liveness, .spin = spin, .sends = &sends(), .has_no_mpirun = has_no_mpirun()};
  liveness.on_lost([&liveness, alone = options.has_no_mpirun] {
    const auto status = liveness.status();
    // A later session can use MPI again unless a process has ended.
    if (alone || !liveness.may_live()) sends().lose(status.text());
    if (alone) mark_broken(status.text());
  });
  return std::make_unique<MpiFabric>(mpi->api(), mpi->comm(), common_streams(bootstrap), closing_channels(), options);
}

bool is_intel(const Bootstrap& bootstrap) {
  const auto* mpi = dynamic_cast<const MpiBootstrap*>(&bootstrap);
  return mpi != nullptr ? mpi->api().family() == Family::intel : family_in_use() == Family::intel;
}

}  // namespace perseus::mpi
