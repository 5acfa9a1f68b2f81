#include "transport/fabric.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/local_rendezvous.h"
#include "transport/hierarchy/fabric.h"
#include "transport/mpi/fabric.h"
#include "transport/self/fabric.h"
#include "transport/shm/fabric.h"
#include "transport/ucx/fabric.h"
#include "transport/xccl/fabric.h"

namespace perseus {

namespace {

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

// Returns null if no mpirun has started the ranks and MPI cannot start without one.
std::unique_ptr<Fabric> connect_by_mpi(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                       const FabricOptions& options) {
  auto fabric = mpi::make_mpi_fabric(bootstrap, liveness, options.spin);
  if (fabric != nullptr || !options.mpi) return fabric;
  auto job = *options.mpi;
  job.rendezvous = MpiRendezvous{.rank = topology.rank(),
                                 .hosts = {},
                                 .host_names = topology.host_names(),
                                 .exchange = [&](std::string_view mine) { return bootstrap.allgather(mine); },
                                 .liveness = &liveness};
  for (int rank = 0; rank < topology.size(); ++rank) job.rendezvous->hosts.push_back(topology.host_of(rank));
  const auto world = make_mpi_bootstrap(job);
  return mpi::make_mpi_fabric(*world, liveness, options.spin);
}

// Returns true on all ranks if all have the same UCX, and false on all if none has one and `is_needed` is not set;
// `why` then has the reason. Throws Error(unavailable) on all ranks otherwise.
bool have_ucx(Bootstrap& bootstrap, const Topology& topology, const LibraryPaths& paths, bool is_needed,
              std::string& why) {
  const auto offers = ucx::exchange_offers(bootstrap, paths);
  const auto wanted = std::ranges::find_if(offers, &std::string::empty, &ucx::Offer::why_none);
  if (wanted == offers.end() && !is_needed) {
    why = "no rank has UCX (rank 0: " + offers.front().why_none + ")";
    return false;
  }
  const auto name = [&](auto rank) {
    return "rank " + std::to_string(rank) + " on host " + topology.host_names()[static_cast<std::size_t>(rank)];
  };
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const auto& offer = offers[rank];
    if (!offer.why_none.empty()) {
      const auto reason =
          is_needed ? "PERSEUS_HOST_TRANSPORT is ucx" : name(wanted - offers.begin()) + " has UCX " + wanted->version;
      throw Error(ErrorKind::unavailable, reason + ", and " + name(rank) + " has no UCX: " + offer.why_none +
                                              ". PERSEUS_HOST_TRANSPORT=mpi connects the hosts by MPI");
    }
    if (offer.version != wanted->version) {
      throw Error(ErrorKind::unavailable, name(rank) + " has UCX " + offer.version + ", and " +
                                              name(wanted - offers.begin()) + " has UCX " + wanted->version +
                                              "; install the same version on all hosts, with `pip install "
                                              "'perseus-like[ucx]'`");
    }
  }
  return true;
}

// Connects the ranks by UCX if no mpirun has started them and UCX is there, otherwise by MPI, or as the user says. All
// ranks choose the same. Returns null if MPI is chosen and cannot start without an mpirun.
std::unique_ptr<Fabric> connect_between_hosts(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                              const FabricOptions& options) {
  const bool is_automatic = options.host_transport == HostTransport::automatic;
  bool by_ucx = options.host_transport == HostTransport::ucx;
  std::string why = "PERSEUS_HOST_TRANSPORT asks for it";
  if (is_automatic && options.local_transport == LocalTransport::mpi) {
    why = "PERSEUS_CPU_TRANSPORT asks for it";
  } else if (is_automatic && mpi::is_mpi(bootstrap)) {
    why = "an mpirun or srun has started this job";
  } else if (is_automatic) {
    by_ucx = true;
    why = "no mpirun has started this job";
  }
  const LibraryPaths paths{.given = options.ucx_library, .python_prefix = options.python_prefix};
  by_ucx = by_ucx && have_ucx(bootstrap, topology, paths, !is_automatic, why);
  if (topology.rank() == 0)
    log(LogLevel::info, (by_ucx ? "UCX connects the hosts: " : "MPI connects the hosts: ") + why);
  if (by_ucx) {
    return ucx::make_ucx_fabric(bootstrap, liveness,
                                {.library = paths,
                                 .connections = {.streams = options.streams, .devices = options.network_interfaces},
                                 .spin = options.spin,
                                 .watched = options.watches_hosts});
  }
  return connect_by_mpi(bootstrap, topology, liveness, options);
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
  if (options.mpi && options.watch_hosts) options.watch_hosts(local != nullptr);
  auto cross = connect_between_hosts(bootstrap, topology, liveness, options);
  if (cross == nullptr) {
    throw Error(
        ErrorKind::unavailable,
        (local == nullptr ? "the ranks cannot share memory (" + why + "), and"
                          : "ranks of " + std::to_string(topology.host_count()) + " hosts are connected by MPI, but") +
            std::string(" this job was not started by an mpirun; start it with mpirun or perseusrun --mpi"));
  }
  if (local == nullptr && options.local_transport == LocalTransport::automatic && topology.rank() == 0) {
    log(LogLevel::warning, "using " + cross->description() +
                               " inside each host too, which is slower: the ranks of a host cannot share memory (" +
                               why + ")");
  }
  return hierarchy::make_cluster_fabric(topology, std::move(local), std::move(cross), options.flat_allreduce);
}

}  // namespace perseus
