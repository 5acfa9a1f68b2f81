// Tests how the communicators of libraries shaped like NCCL end after a failure.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "xccl_cases.h"

namespace perseus::testing {
namespace {

class LostPeer : public ::testing::TestWithParam<Ranks> {};

TEST_P(LostPeer, EndsEveryWait) {
  FakeOrders orders;
  const bool queued = GetParam() != Ranks::blocking;
  const auto library = queued ? queued_library(GetParam() == Ranks::background) : blocking_library();
  run_world(Ranks::threads, 3, [&](World& world) {
    auto transport = connect_all(world, joining(library, queued));
    world.exchange("connected");
    if (world.rank == 2) {
      world.liveness.report_lost(2, "died");
      return;
    }
    std::vector<float> values(10);
    expect_text(sum(*transport, values), ErrorKind::peer_lost, "rank 2 died");
    expect_text(transport->barrier(), ErrorKind::peer_lost, "rank 2 died");
    transport.reset();
    EXPECT_EQ(orders.destroyed, 0) << "a communicator that has lost a rank is not ended in order";
  });
}

INSTANTIATE_TEST_SUITE_P(Xccl, LostPeer, ::testing::Values(Ranks::blocking, Ranks::queued, Ranks::background));

TEST(Xccl, AbortingEndsTheWaitOfItsOwnStream) {
  FakeOrders orders;
  run_world(Ranks::threads, 2, [&](World& world) {
    auto transport = connect_all(world, joining(queued_library(), true), {.queue_only = true});
    if (world.rank == 1) return;
    std::vector<float> values(10);
    EXPECT_TRUE(sum(*transport, values).ok());
    transport->abort({ErrorKind::unavailable, "no memory"});
    expect_text(transport->check(), ErrorKind::unavailable, "no memory");
    transport.reset();
    EXPECT_EQ(orders.aborted, 1);
  });
}

// A call of rank 0 that is in progress until `gate` opens, while rank 1 is lost.
struct CallInProgress {
  std::unique_ptr<xccl::XcclTransport>& transport;
  std::promise<void>& gate;
  std::future<Status> result;
};

void with_call_in_progress(FakeOrders& orders, const std::shared_ptr<xccl::Library>& library,
                           const std::function<void(CallInProgress&)>& body) {
  std::promise<void> entered, gate;
  const auto opened = gate.get_future().share();
  orders.in_all_reduce = [&](int rank) {
    if (rank != 0) return;
    entered.set_value();
    opened.wait();
  };
  run_world(Ranks::threads, 2, [&](World& world) {
    auto transport = connect_all(world, joining(library, true), {.queue_only = true});
    if (world.rank == 1) transport.reset();  // in order, before a rank is lost
    world.exchange("rank 1 has left");
    if (world.rank == 1) return;
    std::vector<float> values(10);
    CallInProgress call{transport, gate, std::async(std::launch::async, [&] { return sum(*transport, values); })};
    entered.get_future().wait();
    world.liveness.report_lost(1, "died");
    body(call);
  });
}

// The abort frees the communicator, which a call of another thread still uses.
TEST(Xccl, AnAbortWaitsForCallsInProgress) {
  FakeOrders orders;
  with_call_in_progress(orders, queued_library(), [&](CallInProgress& call) {
    call.gate.set_value();
    EXPECT_TRUE(call.result.get().ok()) << "its work was queued before the abort";
    expect_text(call.transport->check(), ErrorKind::peer_lost, "rank 1 died");
  });
  EXPECT_EQ(orders.aborted, 1) << "rank 0 aborts its communicator";
  EXPECT_EQ(orders.destroyed, 1) << "rank 1 has lost nobody";
}

// The call has not returned after the limit. To free the communicator then would take it from under the call.
TEST(Xccl, ARevokeEndsTheCallBeforeTheCommunicatorIsFreed) {
  FakeOrders orders;
  orders.revokes = true;
  with_call_in_progress(orders, queued_library(), [&](CallInProgress& call) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (orders.aborted == 0 && orders.revoked == 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(orders.revoked, 1);
    EXPECT_EQ(orders.aborted, 0) << "the call still uses the communicator";
    call.gate.set_value();
    EXPECT_TRUE(call.result.get().ok());
    call.transport.reset();
    EXPECT_EQ(orders.aborted, 1) << "the communicator is freed once the call has returned";
  });
}

// The caller gets the error while the library still executes the call. The abort, which frees the communicator, waits.
TEST(Xccl, ACallInTheBackgroundOutlivesItsCaller) {
  FakeOrders orders;
  with_call_in_progress(orders, queued_library(/*background_calls=*/true), [&](CallInProgress& call) {
    expect_text(call.result.get(), ErrorKind::peer_lost, "rank 1 died");
    call.gate.set_value();
    call.transport.reset();
    EXPECT_EQ(orders.aborted, 1) << "rank 0 aborts its communicator";
  });
}

// Rank 0 waits for rank 1, which fails. Both have a communicator by then.
TEST(Xccl, AStartInTheBackgroundThatFailsIsAborted) {
  FakeOrders orders;
  orders.fail_init = 3;
  orders.fail_rank = 1;
  run_world(Ranks::threads, 2, [](World& world) {
    const xccl::Options options{.start_timeout = std::chrono::milliseconds(400), .queue_only = true};
    const auto mine = joining(queued_library(/*background_calls=*/true), true);
    const auto text = thrown_by([&] { connect_all(world, mine, options); });
    EXPECT_NE(text.find("fakeCommInitRank of Queued 2.3.4 failed with code "), std::string::npos) << text;
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (orders.aborted < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(orders.aborted, 2);
}

// A library that connects at the first collective waits there for a peer that has ended.
enum class End { by_revoke, in_background };
class EndOfCalls : public ::testing::TestWithParam<End> {};
INSTANTIATE_TEST_SUITE_P(Xccl, EndOfCalls, ::testing::Values(End::by_revoke, End::in_background));

TEST_P(EndOfCalls, ACallDoesNotWaitForALostPeer) {
  FakeOrders orders;
  orders.revokes = GetParam() == End::by_revoke;
  orders.all_reduce_waits_for_peers = true;
  const auto library = queued_library(GetParam() == End::in_background);
  with_call_in_progress(orders, library, [&](CallInProgress& call) {
    call.gate.set_value();
    expect_text(call.result.get(), ErrorKind::peer_lost, "rank 1 died");
  });
}

// As before NCCL 2.18: the abort would free the communicator under the call.
TEST(XcclDeathTest, ACallThatCannotBeEndedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto wait_for_peer = [] {
    FakeOrders orders;
    with_call_in_progress(orders, queued_library(), [&](CallInProgress& call) {
      call.result.wait_for(std::chrono::seconds(60));
      call.gate.set_value();
    });
  };
  EXPECT_EXIT(wait_for_peer(), ::testing::ExitedWithCode(EXIT_FAILURE),
              "rank 1 died. A call of Queued 2.3.4 has not returned for 2 s .* this process ends");
}

TEST(Xccl, AFailureInAGroupOfCallsClosesTheGroup) {
  FakeOrders orders;
  orders.fail_send = 3;
  run_world(Ranks::threads, 2, [&](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true), {.queue_only = true});
    if (world.rank == 1) return;
    const std::vector<float> in(4);
    std::vector<float> out(4);
    const std::vector<std::int64_t> bytes(2, 2 * sizeof(float));
    expect_text(transport->alltoall(in.data(), bytes, out.data(), bytes), ErrorKind::transport, "fakeSend");
    EXPECT_FALSE(fake_group_is_open()) << "all later calls of this thread would be part of the group";
  });
}

}  // namespace
}  // namespace perseus::testing
