// Jobs of a few ranks for tests: threads of this process, or forked processes that connect like real ones.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/watch/liveness.h"
#include "transport/fabric.h"

namespace perseus::testing {

struct World {
  int rank = 0;
  int size = 1;
  Fabric& fabric;
  BootstrapAllgather exchange;  // over all ranks
  Liveness& liveness;

  // Makes a link of all ranks, or of some.
  Link connect_all();
  Link connect(const std::vector<int>& members) { return fabric.connect(members, exchange); }
};

using Body = std::function<void(World&)>;

// The kind of ranks. `messages` are threads that MPI's transport connects over a fake libmpi. `hosts` are threads on
// two simulated hosts, uneven for odd sizes, with shared memory within a host and messages between hosts;
// `hosts_with_outboxes` has an Outbox per rank, so a rank that waits must go on calling MPI. `blocking`,
// `queued` and `background` are threads over a fake library shaped like NCCL, which has no control channel; for
// `background` see xccl::Traits.
enum class Ranks { threads, processes, messages, hosts, blocking, queued, background, hosts_with_outboxes };

// Small arena and chunks, so that tests reach their limits.
FabricOptions small_options();

// Runs the body on each rank and waits. If a rank hangs, the test program ends after a minute or two.
void run_world(Ranks kind, int size, const Body& body, const FabricOptions& options = small_options());

// Runs the body in a forked child and returns its process id. The child exits with 0 if no expectation failed in it.
int fork_rank(const std::function<void()>& body);
// Returns true if the child exited with 0.
bool ended_well(int pid);
// Runs the body in a forked child for each rank. All of them must exit with 0.
void fork_ranks(int size, const std::function<void(int rank)>& body);

// Waits for the report of a loss, without polling, and returns its text.
std::string wait_for_loss(Liveness& liveness);

}  // namespace perseus::testing
