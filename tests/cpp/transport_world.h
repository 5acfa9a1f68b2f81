// Worlds of a few ranks for tests: threads of this process, or forked processes that find each other like real ones.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/liveness.h"
#include "transport/fabric.h"

namespace perseus::testing {

struct World {
  int rank = 0;
  int size = 1;
  Fabric& fabric;
  Exchange exchange;  // over all ranks
  Liveness& liveness;

  // A link of all ranks, or of some.
  Link connect_all();
  Link connect(const std::vector<int>& members) { return fabric.connect(members, exchange); }
};

using Body = std::function<void(World&)>;

// How ranks are made. `messages`: threads that MPI's transport connects, over a fake libmpi. `hosts`: threads that play
// two hosts, uneven at odd sizes, with shared memory inside and messages between. `blocking`, `queued`: threads over a
// fake library shaped like NCCL, which has no control channel.
enum class Ranks { threads, processes, messages, hosts, blocking, queued };

// Small arena and chunks, so that edges are near.
FabricOptions small_options();

// Runs the body on each rank and waits. A rank that hangs ends the test program after a minute or two.
void run_world(Ranks kind, int size, const Body& body, const FabricOptions& options = small_options());

// Forks the body and gives the child's process id; the child exits with 0 if no expectation failed in it.
int fork_rank(const std::function<void()>& body);
// True if the child exited with 0.
bool ended_well(int pid);

}  // namespace perseus::testing
