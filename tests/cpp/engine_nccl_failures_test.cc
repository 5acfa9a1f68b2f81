// Tests failures of collectives over NCCL: failing calls, later errors, lost ranks and different versions.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine_nccl.h"

namespace perseus::testing {
namespace {

// The failing rank's error has the call and the library's text. The other ranks fail too, although their part was
// queued.
TEST_F(NcclTest, AFailingCallIsNamedOnAllRanks) {
  orders.fail_rank = 1;
  run({.ranks = 3}, [this](DeviceRank& rank, World& world) {
    DeviceTensor tensor(10);
    warm_up(rank, world, tensor);
    if (rank.rank() == 1) orders.fail_all_reduce = 3;
    world.exchange("");
    const std::string failure = "fakeAllReduce of Queued 2.3.4 failed with code 3: internal error: the cable is out";
    const auto text = rank.allreduce("x", tensor);
    if (rank.rank() == 1) {
      EXPECT_EQ(text, "allreduce 'x': " + failure);
    } else if (!text.empty()) {
      EXPECT_NE(text.find("rank 1 failed: " + failure), std::string::npos) << text;
    }
    if (rank.rank() != 1) {
      const auto text_of_failure = failure_of(rank);
      EXPECT_NE(text_of_failure.find("rank 1 failed: " + failure), std::string::npos) << text_of_failure;
    }
    rank.read(tensor);  // no work blocks on the device
  });
  EXPECT_EQ(orders.aborted, 3 * 2);
}

TEST_F(NcclTest, ALaterErrorAbortsAllRanks) {
  orders.fail_rank = 0;
  run({.ranks = 2}, [this](DeviceRank& rank, World& world) {
    DeviceTensor tensor(10);
    warm_up(rank, world, tensor);
    // Rank 1's part is queued behind work of the framework that does not end before NCCL is aborted.
    std::promise<void> gate;
    if (rank.rank() == 1) rank.hold(gate.get_future().share());
    ASSERT_EQ(rank.allreduce("x", tensor), "");
    world.exchange("");
    if (rank.rank() == 0) orders.async_error = 3;
    // On rank 1, NCCL itself may report that rank 0 is lost.
    const std::string failure = "fakeCommGetAsyncError of Queued 2.3.4 failed with code ";
    const auto text_of_failure = failure_of(rank);
    EXPECT_NE(text_of_failure.find(failure + (rank.rank() == 0 ? "3: internal error" : "")), std::string::npos)
        << text_of_failure;
    gate.set_value();
    rank.read(tensor);
  });
  EXPECT_EQ(orders.aborted, 2 * 2);
}

// No thread drives the engine, and the last queued work is done.
TEST_F(NcclTest, AnErrorIsSeenWhileAnyStreamHasWork) {
  orders.fail_rank = 0;
  run({.ranks = 2, .streams = 2}, [this](DeviceRank& rank, World& world) {
    DeviceTensor tensor(10), other(10);
    warm_up(rank, world, tensor);
    const auto second = rank.fake().make_stream(rank.rank());
    std::promise<void> gate;
    if (rank.rank() == 1) rank.hold(gate.get_future().share());
    ASSERT_EQ(rank.allreduce("x", tensor), "");
    const auto later = rank.submit(rank.work(Verb::allreduce, "y", {&other}), second);
    ASSERT_EQ(rank.finish(later), "");
    rank.device().synchronize(*later->on_device->done);
    world.exchange("");
    if (rank.rank() == 0) orders.async_error = 3;
    const auto until = std::chrono::steady_clock::now() + kNcclPatience;
    const auto knows = [&] { return rank.engine().failed_itself() || world.liveness.any_lost(); };
    while (!knows() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_TRUE(knows());
    gate.set_value();
    rank.read(tensor);
  });
}

TEST_F(NcclTest, ALostRankEndsQueuedWork) {
  run({.ranks = 2}, [](DeviceRank& rank, World& world) {
    DeviceTensor tensor(10);
    warm_up(rank, world, tensor);
    std::promise<void> gate;
    if (rank.rank() == 1) rank.hold(gate.get_future().share());
    ASSERT_EQ(rank.allreduce("x", tensor), "");
    world.exchange("");
    if (rank.rank() == 0) world.liveness.report_lost(1, "has ended");
    EXPECT_NE(failure_of(rank).find("rank 1 has ended"), std::string::npos);
    if (rank.rank() == 0) rank.read(tensor);  // rank 1 has not submitted it
    world.exchange("");
    gate.set_value();
    rank.read(tensor);
  });
}

// An abort may wait for the device, so it ends only if all communicators of the device are aborted.
TEST_F(NcclTest, AllCommunicatorsOfADeviceAreAbortedTogether) {
  for (const bool in_group : {false, true}) {
    orders.groups_aborts = in_group;
    orders.aborted = 0;
    run({.ranks = 2, .streams = 4}, [](DeviceRank& rank, World& world) {
      std::vector<DeviceTensor> tensors(4, DeviceTensor(10));
      warm_up(rank, world, tensors.front());
      std::promise<void> gate;
      if (rank.rank() == 1) rank.hold(gate.get_future().share());
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(rank.allreduce("x" + std::to_string(i), tensors[i]), "");
      }
      world.exchange("");
      if (rank.rank() == 0) world.liveness.report_lost(1, "has ended");
      EXPECT_NE(failure_of(rank).find("rank 1 has ended"), std::string::npos);
      if (rank.rank() == 0) rank.read(tensors.back());  // rank 1 has not submitted it
      world.exchange("");
      gate.set_value();
      rank.read(tensors.back());
    });
    EXPECT_EQ(orders.aborted, 2 * 4);
  }
}

// The engine of one process set fails; work of the other one waits on the same device.
TEST_F(NcclTest, TheCommunicatorsOfAllProcessSetsAreAbortedTogether) {
  orders.fail_rank = 0;
  const DeviceJob job{.ranks = 2, .streams = 2};
  run_with_options(job, [&](FakeCuda& fake, World& world, const EngineOptions& options) {
    DeviceRank one(world, fake, job.streams, options), two(world, fake, job.streams, options);
    DeviceTensor a(10), b(10);
    warm_up(one, world, a);
    warm_up(two, world, b);
    std::promise<void> gate;
    if (world.rank == 1) two.hold(gate.get_future().share());
    ASSERT_EQ(two.allreduce("b", b), "");
    world.exchange("");
    if (world.rank == 0) orders.fail_all_reduce = 3;
    world.exchange("");
    one.allreduce("a", a);
    for (auto* each : {&one, &two}) {
      const auto text = failure_of(*each);
      EXPECT_NE(text.find("code 3: internal error"), std::string::npos) << text;
    }
    if (world.rank == 0) two.read(b);
    world.exchange("");
    gate.set_value();
    two.read(b);
    two.engine().close(std::chrono::seconds(10));
    one.engine().close(std::chrono::seconds(10));
  });
  EXPECT_EQ(orders.aborted, 2 * 4);
}

// The call has returned long ago, and no peer is lost.
TEST_F(NcclTest, QueuedWorkThatIsNotDoneInTimeFailsWithItsNameAndRanks) {
  run({.ranks = 2, .streams = 1, .timeout = std::chrono::seconds(5)}, [](DeviceRank& rank, World& world) {
    DeviceTensor tensor(10);
    warm_up(rank, world, tensor);
    std::promise<void> gate;
    if (rank.rank() == 1) rank.hold(gate.get_future().share());
    ASSERT_EQ(rank.allreduce("late", tensor), "");
    const auto text = failure_of(rank);
    EXPECT_NE(text.find("allreduce 'late' of ranks [0,1]: "), std::string::npos) << text;
    EXPECT_NE(text.find("is not done with it 5 s after it was queued"), std::string::npos) << text;
    if (rank.rank() == 0) rank.read(tensor);  // the abort has ended it
    world.exchange("");
    gate.set_value();
    rank.read(tensor);
  });
}

TEST_F(NcclTest, ARankWithoutNcclMakesAllUseTheHostAndWarnsOnce) {
  const DeviceJob job{.ranks = 3, .open = [](int rank) -> std::shared_ptr<const xccl::Library> {
                        if (rank == 2) throw Error(ErrorKind::unavailable, "NCCL is not installed. Install it");
                        return queued_library();
                      }};
  ::testing::internal::CaptureStderr();
  run(job, [](DeviceRank& rank, World&) {
    DeviceTensor tensor(10);
    for (int step = 0; step < 3; ++step) {
      rank.fill(tensor, static_cast<float>(rank.rank() + 1));
      ASSERT_EQ(rank.allreduce("x", tensor), "");
      EXPECT_EQ(rank.read(tensor), all(10, 6.0F));
    }
  });
  const auto log = ::testing::internal::GetCapturedStderr();
  const std::string warning =
      "tensors are copied through host memory, which is slower: rank 2: NCCL is not installed. Install it";
  const auto first = log.find(warning);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("through host memory", first + warning.size()), std::string::npos) << log;
}

// The first collective fails with the same text on each rank.
TEST_F(NcclTest, AnotherVersionIsAnErrorOnAllRanks) {
  const DeviceJob job{.ranks = 3, .open = [](int rank) -> std::shared_ptr<const xccl::Library> {
                        auto library = queued_library();
                        if (rank == 1) library->version = "2.9.9";
                        return library;
                      }};
  run(job, [](DeviceRank& rank, World&) {
    DeviceTensor tensor(10);
    rank.fill(tensor, 1.0F);
    const auto text = rank.allreduce("x", tensor);
    EXPECT_NE(text.find("rank 0 has Queued 2.3.4 and rank 1 has Queued 2.9.9, which do not connect; install the same "
                        "version for all ranks"),
              std::string::npos)
        << text;
    rank.read(tensor);
  });
}

}  // namespace
}  // namespace perseus::testing
