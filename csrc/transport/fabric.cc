#include "transport/fabric.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/local/local_rendezvous.h"
#include "transport/hierarchy/fabric.h"
#include "transport/mpi/fabric.h"
#include "transport/self/fabric.h"
#include "transport/shm/fabric.h"
#include "transport/ucx/fabric.h"
#include "transport/xccl/fabric.h"

namespace perseus {

namespace {

// Says what to do if neither UCX nor MPI can connect the hosts.
constexpr const char* kRemedy =
    ". Without MPI, all hosts need UCX (`pip install 'perseus-like[ucx]'` or `apt install libucx0`). For MPI, start "
    "the job with an mpirun: mpirun, `srun --mpi=pmi2` or `perseusrun --mpi`";

std::unique_ptr<Fabric> connect_host(const std::string& address, const Topology& topology, Liveness& liveness,
                                     const FabricOptions& options) {
  if (topology.local_size() == 1) return std::make_unique<self::SelfFabric>(topology.rank());
  if (options.rendezvous && options.rendezvous->size() == topology.local_size()) {
    return shm::ShmFabric::create(options.rendezvous, topology.local_ranks(), liveness, options);
  }
  auto rendezvous = std::make_shared<LocalRendezvous>(address, topology.local_rank(), topology.local_size(),
                                                      options.start_timeout, options.cancel_fd);
  auto fabric = shm::ShmFabric::create(std::move(rendezvous), topology.local_ranks(), liveness, options);
  fabric->start_watch();
  return fabric;
}

// Makes the fabric inside this rank's host. Returns null on all ranks if the ranks of any host cannot share memory;
// `why` then has the reason, the same on all ranks.
std::unique_ptr<Fabric> connect_hosts(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                      const FabricOptions& options, std::string& why) {
  const auto addresses = bootstrap.allgather(topology.local_rank() == 0 ? random_rendezvous_address() : "");
  std::unique_ptr<Fabric> local;
  std::string failure;
  try {
    const auto leader = static_cast<std::size_t>(topology.local_ranks().front());
    local = connect_host(addresses[leader], topology, liveness, options);
  } catch (const Error& error) {
    failure = error.what();
  }
  const auto failures = bootstrap.allgather(failure);
  const auto first = std::find_if(failures.begin(), failures.end(), [](const auto& text) { return !text.empty(); });
  if (first == failures.end()) return local;
  why = "rank " + std::to_string(first - failures.begin()) + ": " + *first;
  return nullptr;
}

// Throws Error(unavailable) on all ranks unless all have the same UCX. `why` says why UCX connects the ranks.
void check_ucx(Bootstrap& bootstrap, const Topology& topology, const LibraryPaths& paths, const std::string& why) {
  const auto offers = ucx::exchange_offers(bootstrap, paths);
  const auto name = [&](std::size_t rank) {
    return "rank " + std::to_string(rank) + " on host " + topology.host_names()[rank];
  };
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const auto& offer = offers[rank];
    if (!offer.why_none.empty()) {
      throw Error(ErrorKind::unavailable, why + ", and " + name(rank) + " has no UCX: " + offer.why_none + kRemedy);
    }
    if (offer.version != offers.front().version) {
      throw Error(ErrorKind::unavailable, name(rank) + " has UCX " + offer.version + ", and " + name(0) + " has UCX " +
                                              offers.front().version +
                                              "; install the same version on all hosts, with `pip install "
                                              "'perseus-like[ucx]'`");
    }
  }
}

// Connects the ranks by MPI if an mpirun has started them, otherwise by UCX, or as the user says. All ranks choose the
// same. `apart` says why the ranks of a host need it as well, if they do.
std::unique_ptr<Fabric> connect_between_hosts(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                              const FabricOptions& options, const std::string& apart) {
  const bool has_mpi = mpi::is_mpi(bootstrap);
  bool by_ucx = !has_mpi;
  std::string why = has_mpi ? "an mpirun or srun has started this job" : "no mpirun has started this job";
  if (options.host_transport != HostTransport::automatic) {
    by_ucx = options.host_transport == HostTransport::ucx;
    why = by_ucx ? "PERSEUS_HOST_TRANSPORT is ucx" : "PERSEUS_HOST_TRANSPORT is mpi";
  } else if (options.local_transport == LocalTransport::mpi) {
    by_ucx = false;
    why = "PERSEUS_CPU_TRANSPORT is mpi";
  }
  if (!by_ucx && !has_mpi) {
    throw Error(ErrorKind::unavailable, why + ", and no mpirun has started this job" + kRemedy);
  }
  const LibraryPaths paths{.given = options.ucx_library, .python_prefix = options.python_prefix};
  if (by_ucx) check_ucx(bootstrap, topology, paths, apart.empty() ? why : apart + ", " + why);
  if (topology.rank() == 0) {
    log(LogLevel::info, (by_ucx ? "UCX connects the hosts: " : "MPI connects the hosts: ") + why);
  }
  if (!by_ucx) return mpi::make_mpi_fabric(bootstrap, liveness, options.spin);
  return ucx::make_ucx_fabric(bootstrap, liveness,
                              {.library = paths,
                               .connections = {.streams = options.streams, .devices = options.network_interfaces},
                               .spin = options.spin,
                               .watched = options.watches_hosts});
}

}  // namespace

std::unique_ptr<Fabric> make_fabric(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                    const FabricOptions& options) {
  if (topology.size() == 1) return std::make_unique<self::SelfFabric>(topology.rank());
  if (options.local_transport == LocalTransport::oneccl) {
    auto below = options;
    below.local_transport = LocalTransport::automatic;
    auto fabric = make_fabric(bootstrap, topology, liveness, below);
    return xccl::make_oneccl_fabric(std::move(fabric), topology, liveness, options, mpi::is_intel(bootstrap));
  }
  std::unique_ptr<Fabric> local;
  std::string why = "PERSEUS_CPU_TRANSPORT asks for MPI";
  if (options.local_transport != LocalTransport::mpi)
    local = connect_hosts(bootstrap, topology, liveness, options, why);
  if (local != nullptr && topology.host_count() == 1) return local;

  if (local == nullptr && options.local_transport == LocalTransport::shm) {
    throw Error(ErrorKind::unavailable, "the ranks of a host cannot share memory: " + why);
  }
  std::string apart;
  if (local == nullptr && options.local_transport == LocalTransport::automatic) {
    apart = "the ranks of a host cannot share memory (" + why + ")";
  }
  if (options.watch_hosts) options.watch_hosts(local != nullptr);
  auto cross = connect_between_hosts(bootstrap, topology, liveness, options, apart);
  if (!apart.empty() && topology.rank() == 0) {
    log(LogLevel::warning, "using " + cross->description() + " inside each host too, which is slower: " + apart);
  }
  return hierarchy::make_cluster_fabric(topology, std::move(local), std::move(cross), options.flat_allreduce);
}

}  // namespace perseus
