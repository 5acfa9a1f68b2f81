// What connects the ranks of a job: makes the transport and the control channel of any group of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/liveness.h"
#include "bootstrap/mpi.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch.h"
#include "transport/control_channel.h"
#include "transport/transport.h"

namespace perseus {

// The two things a lane of the engine runs on.
struct Link {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<ControlChannel> control;
};

// Collective over the ranks that make a link together: every rank's bytes, by rank.
using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

class Fabric {
 public:
  virtual ~Fabric() = default;

  // Connects the ascending world ranks `members`. Called by all ranks of `exchange` in the same order;
  // ranks outside `members` take part in the exchange and get an empty link. Throws Error.
  virtual Link connect(std::span<const int> members, const Exchange& exchange) = 0;

  // Whether two of its transports of the same ranks are worth using by two threads at once.
  virtual bool works_beside() const { return true; }

  // Memory that local peers can reduce in place, or nullptr when there is none left. 64-byte aligned, zeroed
  // when fresh. Any thread.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  // Whether the first rank of each host learns at once that another rank of its host has ended.
  virtual bool watches_host() const { return false; }

  // This rank's end of that watch; null on a host's only rank, too.
  virtual Watch* local_watch() const { return nullptr; }

  // The destruction that follows is orderly. Without it the peers take it for the death of this rank.
  virtual void say_goodbye() {}

  // In a forked child: lets go of what would tell peers that the parent still lives, and makes memory that the parent
  // shares with them copy-on-write.
  virtual void close_after_fork() {}

  // One line for the log: "shm on 1 host", "mpi (Open MPI 5.0.11) between 4 hosts, shm inside".
  virtual std::string description() const = 0;
};

// Which engine carries the ranks of one host; oneccl: those of all hosts.
enum class LocalEngine { automatic, shm, mpi, oneccl };

struct FabricOptions {
  LocalEngine local_engine = LocalEngine::automatic;  // automatic: shm, and MPI where the ranks cannot reach each other
  std::size_t arena_bytes = 0;                        // address space per rank; 0: from the machine's memory
  std::size_t chunk_bytes = 0;                        // pipeline piece for private memory; 0: from the caches
  bool tunable = false;                               // chunk_bytes is where set_chunk_bytes() may go up from
  std::chrono::microseconds spin{30};                 // a wait polls at most so long before it sleeps
  std::chrono::milliseconds start_timeout{60'000};
  int called_off = -1;          // a descriptor that becomes readable when ranks will not come
  std::string python_prefix;    // sys.prefix: wheels put libraries below it
  std::string oneccl_library;   // its path; empty: found by itself
  std::optional<MpiJob> mpi;    // how MPI is to start where it connects ranks that no mpirun has started
  bool flat_allreduce = false;  // over several hosts without regard to which ranks share one
};

// Chooses by topology: self for one rank, shm on one host, hierarchy of shm and mpi on several; above them oneCCL where
// it is asked for.
// Collective over the bootstrap's ranks. Throws Error.
std::unique_ptr<Fabric> make_fabric(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness,
                                    const FabricOptions& options = {});

}  // namespace perseus
