#include "xccl_fake_communicators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "xccl_fake.h"

namespace perseus::testing {
namespace {

constexpr std::chrono::seconds kAbortLimit{30};

std::atomic<FakeOrders*> the_orders{nullptr};

// All communicators that have not ended.
struct Alive {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<xccl::Comm, std::shared_ptr<FakeComm>> comms;
};
// Never destroyed, because the thread of an abandoned call may use one until the process ends.
Alive& alive() {
  static auto* all = new Alive;
  return *all;
}

// Returns true if no communicator on the device still waits for peers.
bool is_device_idle(std::uintptr_t device) {
  const auto& comms = alive().comms;
  return std::all_of(comms.begin(), comms.end(), [&](const auto& each) {
    const auto& comm = *each.second;
    return comm.device != device || (comm.abort_begun && comm.queued == 0 && comm.calls == 0);
  });
}

std::shared_ptr<FakeComm> find(xccl::Comm comm) {
  const std::scoped_lock lock(alive().mutex);
  const auto found = alive().comms.find(comm);
  if (found != alive().comms.end()) {
    ++found->second->calls;
    return found->second;
  }
  ADD_FAILURE() << "a communicator is used after its end";
  auto none = std::make_shared<FakeComm>();
  none->group = std::make_shared<FakeGroup>(1);
  none->group->abort();
  ++none->calls;
  return none;
}

}  // namespace

FakeOrders* fake_orders() { return the_orders; }
void set_fake_orders(FakeOrders* orders) { the_orders = orders; }

FakeGroups& fake_groups() {
  static FakeGroups the_groups;
  return the_groups;
}

FakeUse::FakeUse(xccl::Comm comm) : comm(find(comm)) {}

void begin_queued(FakeComm& comm) {
  const std::scoped_lock lock(alive().mutex);
  ++comm.queued;
}

void end_queued(FakeComm& comm) {
  const std::scoped_lock lock(alive().mutex);
  --comm.queued;
  alive().changed.notify_all();
}

namespace {

// Returns a communicator whose ranks have not met, and the code of the test's order.
std::pair<std::shared_ptr<FakeComm>, int> make_comm(std::size_t ranks, const xccl::UniqueId& id, int rank) {
  const auto* said = fake_orders();
  int number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  auto made = std::make_shared<FakeComm>();
  made->group = fake_groups().join(number, static_cast<int>(ranks));
  made->rank = rank;
  // Without an order, each communicator has a device of its own.
  made->device = said != nullptr && said->current_device ? static_cast<std::uintptr_t>(said->current_device())
                                                         : reinterpret_cast<std::uintptr_t>(made.get());
  const bool fails = said != nullptr && said->fail_init != 0 && said->fail_rank == rank;
  return {std::move(made), fails ? said->fail_init.load() : xccl::kSuccess};
}

xccl::Comm add_alive(std::shared_ptr<FakeComm> made) {
  const std::scoped_lock lock(alive().mutex);
  auto* const comm = made.get();
  alive().comms[comm] = std::move(made);
  return comm;
}

}  // namespace

int fake_comm_init_rank(xccl::Comm* comm, std::size_t ranks, xccl::UniqueId id, int rank) {
  auto [made, code] = make_comm(ranks, id, rank);
  if (code != xccl::kSuccess) return code;
  if (!made->group->barrier()) return kFakeAborted;
  *comm = add_alive(std::move(made));
  return xccl::kSuccess;
}

int fake_comm_init_rank_config(xccl::Comm* comm, std::size_t ranks, xccl::UniqueId id, int rank,
                               xccl::CommConfig* config) {
  if (config->size != sizeof *config || config->magic != 0xcafebeef) return kFakeFailed;
  if (config->blocking != 0) return fake_comm_init_rank(comm, ranks, id, rank);
  const auto [made, code] = make_comm(ranks, id, rank);
  made->background_calls = true;
  *comm = add_alive(made);
  return execute(made, [group = made->group, code = code] {
    if (code != xccl::kSuccess) return code;
    return group->barrier() ? xccl::kSuccess : kFakeAborted;
  });
}

int execute(const std::shared_ptr<FakeComm>& comm, std::function<int()> call) {
  if (!comm->background_calls) return call();
  EXPECT_NE(comm->async_error, kFakeInProgress) << "a communicator is used before its last call has ended";
  if (comm->background.joinable()) comm->background.join();
  comm->async_error = kFakeInProgress;
  comm->background = std::thread([comm = comm.get(), call = std::move(call)] {
    const int code = call();
    int expected = kFakeInProgress;  // work that the call has queued may have failed already
    comm->async_error.compare_exchange_strong(expected, code);
  });
  return kFakeInProgress;
}

int fake_comm_destroy(xccl::Comm comm) {
  const std::scoped_lock lock(alive().mutex);
  const auto ended = alive().comms.extract(comm);
  if (ended.empty()) {
    ADD_FAILURE() << "a communicator is destroyed after its end";
    return kFakeFailed;
  }
  EXPECT_EQ(ended.mapped()->calls, 0) << "a communicator is destroyed while a call is in it";
  EXPECT_NE(ended.mapped()->async_error, kFakeInProgress)
      << "a communicator is destroyed before its last call has ended";
  if (ended.mapped()->background.joinable()) ended.mapped()->background.join();
  alive().changed.notify_all();
  return xccl::kSuccess;
}

int fake_abort(const std::vector<xccl::Comm>& comms) {
  std::unique_lock lock(alive().mutex);
  std::uintptr_t device = 0;
  std::vector<std::thread> background;
  for (auto* const each : comms) {
    const auto found = alive().comms.find(each);
    if (found == alive().comms.end()) {
      ADD_FAILURE() << "a communicator is aborted after its end";
      return kFakeFailed;
    }
    auto& comm = *found->second;
    EXPECT_EQ(comm.calls, 0) << "a communicator is freed while a call is in it";
    comm.abort_begun = true;
    comm.group->abort();
    device = comm.device;
    background.push_back(std::move(comm.background));
  }
  lock.unlock();
  for (auto& each : background) {
    if (each.joinable()) each.join();
  }
  lock.lock();
  alive().changed.notify_all();
  const auto until = std::chrono::steady_clock::now() + kAbortLimit;
  // The end of a call changes an atomic count only, so this looks from time to time.
  while (!is_device_idle(device) && std::chrono::steady_clock::now() < until) {
    alive().changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_device_idle(device)) << "an abort waits for kernels of communicators that nobody aborts";
  for (auto* const each : comms) alive().comms.erase(each);
  alive().changed.notify_all();
  return xccl::kSuccess;
}

}  // namespace perseus::testing
