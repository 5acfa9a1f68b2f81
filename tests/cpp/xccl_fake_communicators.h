// The fake library's communicators: their life, and the end of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "transport/xccl/functions.h"
#include "xccl_fake_group.h"

namespace perseus::testing {

struct FakeOrders;

inline constexpr int kFakeFailed = 3, kFakeAborted = 6, kFakeInProgress = 7;

// Returns the orders of the test that runs, or null.
FakeOrders* fake_orders();
void set_fake_orders(FakeOrders* orders);
FakeGroups& fake_groups();

struct FakeComm {
  std::shared_ptr<FakeGroup> group;
  int rank = 0;
  std::uintptr_t device = 0;
  std::atomic<int> async_error{0};
  std::map<xccl::Op, double> factors;
  std::atomic<int> calls{0};  // calls of the library that are in it
  bool background_calls = false;
  std::thread background;    // executes the last call, if the communicator has background_calls
  int queued = 0;            // work on streams that has not run; guarded with all communicators
  bool abort_begun = false;  // guarded with all communicators
};

// A call that is in a communicator. A call with a communicator that has ended fails the test.
class FakeUse {
 public:
  explicit FakeUse(xccl::Comm comm);
  ~FakeUse() { --comm->calls; }
  FakeUse(const FakeUse&) = delete;
  FakeUse& operator=(const FakeUse&) = delete;

  const std::shared_ptr<FakeComm> comm;
};

// Executes a call: at once, or on the communicator's thread, and returns kFakeInProgress then.
int execute(const std::shared_ptr<FakeComm>& comm, std::function<int()> call);

// Counts work of a communicator on a stream.
void begin_queued(FakeComm& comm);
void end_queued(FakeComm& comm);

int fake_comm_init_rank(xccl::Comm* comm, std::size_t ranks, xccl::UniqueId id, int rank);
int fake_comm_init_rank_config(xccl::Comm* comm, std::size_t ranks, xccl::UniqueId id, int rank,
                               xccl::CommConfig* config);
int fake_comm_destroy(xccl::Comm comm);

// Tells all of these communicators to end, and then waits as the real library may: for the device, thus for all other
// communicators there. So it only returns if the abort of these has begun too.
int fake_abort(const std::vector<xccl::Comm>& comms);

}  // namespace perseus::testing
