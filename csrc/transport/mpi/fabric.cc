#include "transport/mpi/fabric.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/mpi/apart.h"
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
  for (int number = 0; number < count; ++number) streams.push_back(api.duplicate_as_stream(first, number));
  api.free(first);
  return streams;
}

class MpiFabric final : public Fabric {
 public:
  MpiFabric(Api& api, Comm job, int streams, Retired& retired, const WaitOptions& options)
      : retired_(retired),
        options_(options),
        streams_(streams),
        world_(api, made<Comm>([api = &api, job] { return api->duplicate(job); }), options_) {}

  Link connect(std::span<const int> members, const Exchange& /*exchange*/) override {
    Link link;
    if (std::find(members.begin(), members.end(), world_.rank()) == members.end()) return link;
    Api& api = world_.api();
    retired_.sweep();
    auto comms = made<std::vector<Comm>>(
        [&api, world = world_.comm(), streams = streams_, ranks = std::vector<int>(members.begin(), members.end())] {
          auto all = make_streams(api, world, streams, ranks);
          all.push_back(api.create(world, ranks, kControlTag));
          return all;
        });
    const auto control = comms.back();
    comms.pop_back();
    link.transport = std::make_unique<MpiTransport>(api, std::move(comms), options_);
    link.control = std::make_unique<MpiChannel>(api, control, options_, retired_);
    return link;
  }

  // Intel MPI's streams belong to a thread each, and threads of an MPI without streams wait for one another.
  bool works_beside() const override { return streams_ > 1 && world_.api().family() != Family::intel; }

  // Nobody else can reach this memory, so it is ordinary.
  void* allocate(std::size_t bytes) override {
    const auto rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, rounded);
    if (memory != nullptr) std::memset(memory, 0, rounded);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }

  std::string description() const override {
    const auto streams = streams_ == 1 ? "" : ", " + std::to_string(streams_) + " streams";
    return "mpi (" + world_.api().version() + streams + ")";
  }

 private:
  // With an mpirun around us it ends those that wait here for a rank that is lost.
  template <class Result, class Call>
  Result made(const Call& call) const {
    if (!options_.has_no_mpirun) return call();
    try {
      return apart<Result>(call, options_.liveness, std::chrono::milliseconds(0));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::transport) mark_broken(error.what());
      throw;
    }
  }

  Retired& retired_;
  WaitOptions options_;
  int streams_;
  Communicator world_;
};

// What one host's MPI has, another's may not: the least of all.
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
    // MPI can go on, in a later session, unless a process has ended.
    if (alone || !liveness.may_live()) sends().lose(status.text());
    if (alone) mark_broken(status.text());
  });
  return std::make_unique<MpiFabric>(mpi->api(), mpi->comm(), common_streams(bootstrap), retired(), options);
}

bool is_intel(const Bootstrap& bootstrap) {
  const auto* mpi = dynamic_cast<const MpiBootstrap*>(&bootstrap);
  return mpi != nullptr ? mpi->api().family() == Family::intel : family_in_use() == Family::intel;
}

}  // namespace perseus::mpi
