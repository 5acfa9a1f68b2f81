// Makes the transport and the control channel of any group of ranks of a job.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch/liveness.h"
#include "bootstrap/watch/watch.h"
#include "transport/control_channel.h"
#include "transport/transport.h"

namespace perseus {

// The transport and the control channel of one process set engine.
struct Link {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<ControlChannel> control;
};

// Gathers the bytes of every rank, by rank. Collective over the ranks that make a link together.
using BootstrapAllgather = std::function<std::vector<std::string>(std::string_view mine)>;

// Ascending world ranks that are connected.
struct Group {
  std::vector<int> members;
  bool has_control = true;  // it needs a control channel
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  // Connects the ascending world ranks `members`. All ranks of `exchange` call it in the same order. Ranks that are not
  // members take part in the exchange and get an empty link. Throws Error.
  virtual Link connect(std::span<const int> members, const BootstrapAllgather& exchange) = 0;

  // Connects several groups, and returns their links in this order. The groups are the same on all ranks of `exchange`.
  virtual std::vector<Link> connect_groups(std::span<const Group> groups, const BootstrapAllgather& exchange) {
    std::vector<Link> links;
    links.reserve(groups.size());
    for (const auto& group : groups) {
      links.push_back(connect(group.members, exchange));
      if (!group.has_control) links.back().control.reset();
    }
    return links;
  }

  // Returns true if two transports of the same ranks, used by two threads at once, are faster than one.
  virtual bool works_beside() const { return true; }

  // Allocates memory that local peers can reduce in place, 64-byte aligned and zeroed if it was not used before.
  // Returns nullptr if none is left. Any thread.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  // Makes memory in a file that another library shares between processes, such as a torch tensor's, memory that local
  // peers reduce in place, until the returned object is released. Release it before freeing the memory. Returns null if
  // the transport of this host does not use shared memory. Throws Error(unavailable). Any thread.
  virtual std::shared_ptr<void> register_shared_memory(const void* /*data*/, std::size_t /*bytes*/) { return nullptr; }

  // Returns true if the first rank of each host learns at once that another rank of its host has ended.
  virtual bool watches_host() const { return false; }

  // Starts the watch of a fabric that uses FabricOptions::rendezvous. Other fabrics have started it.
  virtual void start_watch() {}

  // Returns this rank's end of that watch, or null, also on a host's only rank.
  virtual Watch* local_watch() const { return nullptr; }

  // Lets a library such as MPI, which works only inside of its calls, go on with what earlier calls have left. Cheap,
  // and never throws. Any thread that calls the fabric's transports.
  virtual void make_progress() {}

  // Makes the transports that are connected from now on call `work` from time to time while they wait.
  virtual void work_while_waiting(const std::function<void()>& /*work*/) {}

  // Announces that the destruction that follows is an orderly shutdown. Without it the peers take the destruction for
  // the death of this rank.
  virtual void announce_shutdown() {}

  // Ends this rank's part of the watch, its thread and its connections. Memory can be used, and released, further.
  virtual void end_watch() {}

  // Call in a forked child: closes the connections by which peers would believe that the parent still lives, and makes
  // the memory that the parent shares with them copy-on-write.
  virtual void close_after_fork() {}

  // Returns one line for the log, such as "mpi (Open MPI 5.0.11) between 4 hosts, shm inside".
  virtual std::string description() const = 0;
};

// The transport between the ranks of one host; oneccl is used between all ranks of the job.
enum class LocalTransport { automatic, shm, mpi, oneccl };

// The transport between the hosts; automatic: MPI if an mpirun has started the job, otherwise UCX.
enum class HostTransport { automatic, mpi, ucx };

struct FabricOptions {
  HostTransport host_transport = HostTransport::automatic;
  std::string ucx_library;         // the path of UCX; empty: search for it
  std::string network_interfaces;  // for UCX; empty: all
  int streams = 1;                 // connections between two ranks over UCX
  bool watches_hosts = true;       // a heartbeat notices a lost host; the value of rank 0 counts
  LocalTransport local_transport =
      LocalTransport::automatic;       // automatic: shm, or as between hosts if ranks cannot share memory
  std::size_t arena_bytes = 0;         // address space per rank; 0: computed from the machine's memory
  std::size_t chunk_bytes = 0;         // chunk of the pipeline for private memory; 0: computed from the caches
  bool tunable = false;                // set_chunk_bytes() may raise chunk_bytes
  std::chrono::microseconds spin{30};  // longest time for which a wait polls before it sleeps
  std::chrono::milliseconds start_timeout{60'000};
  // Connects the ranks of a job that are all on one host; null: the transport of the host makes connections of its own.
  // The watch uses the same connections: call start_watch() once nobody else needs them.
  std::shared_ptr<LocalRendezvous> rendezvous = {};
  int cancel_fd = -1;          // a descriptor that becomes readable if some ranks will never start
  std::string python_prefix;   // sys.prefix: wheels put libraries below it
  std::string oneccl_library;  // the path of oneCCL; empty: search for it
  // Called on all ranks before the hosts are connected, once the ranks of each host are (`local_watch`) or cannot be.
  // From then on the start ends if a rank is lost.
  std::function<void(bool local_watch)> watch_hosts = {};
  bool flat_allreduce = false;  // over several hosts, all ranks reduce over MPI, regardless of hosts
};

// Makes the fabric for the topology: self for one rank, shm on one host, the hierarchy of shm and mpi on several hosts,
// and oneCCL on top if it is requested. Collective over the bootstrap's ranks. Throws Error.
std::unique_ptr<Fabric> make_fabric(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                    const FabricOptions& options = {});

}  // namespace perseus
