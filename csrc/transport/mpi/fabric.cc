#include "transport/mpi/fabric.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/mpi/bootstrap.h"
#include "transport/mpi/channel.h"
#include "transport/mpi/process.h"
#include "transport/mpi/transport.h"

namespace perseus::mpi {
namespace {

constexpr int kTransportTag = 1, kControlTag = 2;

class MpiFabric final : public Fabric {
 public:
  MpiFabric(Api& api, Comm job, Retired& retired, const Liveness& liveness, std::chrono::microseconds spin)
      : retired_(retired), options_{.liveness = &liveness, .spin = spin}, world_(api, api.duplicate(job), options_) {}

  Link connect(std::span<const int> members, const Exchange& /*exchange*/) override {
    Link link;
    if (std::find(members.begin(), members.end(), world_.rank()) == members.end()) return link;
    Api& api = world_.api();
    retired_.sweep();
    link.transport = std::make_unique<MpiTransport>(api, api.create(world_.comm(), members, kTransportTag), options_);
    link.control =
        std::make_unique<MpiChannel>(api, api.create(world_.comm(), members, kControlTag), options_, retired_);
    return link;
  }

  // Nobody else can reach this memory, so it is ordinary.
  void* allocate(std::size_t bytes) override {
    const auto rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, rounded);
    if (memory != nullptr) std::memset(memory, 0, rounded);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }

  std::string description() const override { return "mpi (" + world_.api().version() + ")"; }

 private:
  Retired& retired_;
  WaitOptions options_;
  Communicator world_;
};

}  // namespace

std::unique_ptr<Fabric> make_mpi_fabric(Bootstrap& bootstrap, Liveness& liveness, std::chrono::microseconds spin) {
  const auto* mpi = dynamic_cast<MpiBootstrap*>(&bootstrap);
  if (mpi == nullptr) return nullptr;
  return std::make_unique<MpiFabric>(mpi->api(), mpi->comm(), retired(), liveness, spin);
}

}  // namespace perseus::mpi
