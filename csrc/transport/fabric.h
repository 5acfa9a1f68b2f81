// What connects the ranks of a job: makes the transport and the control channel of any group of them.
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
#include "bootstrap/liveness.h"
#include "bootstrap/topology.h"
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

  // Memory that local peers can reduce in place, or nullptr when there is none left. 64-byte aligned, zeroed
  // when fresh. Any thread.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  // One line for the log: "shm on 1 host", "mpi (Open MPI 5.0.11) between 4 hosts, shm inside".
  virtual std::string description() const = 0;
};

// Chooses by topology: self for one rank, shm on one host, hierarchy of shm and mpi on several.
// Collective over the bootstrap's ranks. Throws Error.
std::unique_ptr<Fabric> make_fabric(Bootstrap& bootstrap, const Topology& topology, Liveness& liveness);

}  // namespace perseus
