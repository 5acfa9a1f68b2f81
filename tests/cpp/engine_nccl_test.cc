// Tests collectives of tensors on a device: engine, streams of a fake driver, and a fake NCCL whose ranks are threads.
#include "engine_nccl.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"

namespace perseus::testing {
namespace {

float total(int size) { return static_cast<float>(size * (size + 1)) / 2; }

TEST_F(NcclTest, AllreduceInPlaceAndFused) {
  for (const int ranks : {1, 2, 4}) {
    run({.ranks = ranks, .streams = 3}, [](DeviceRank& rank, World&) {
      constexpr int kCount = 12;
      std::vector<DeviceTensor> tensors(kCount, DeviceTensor(70));
      for (int step = 0; step < 3; ++step) {
        std::vector<std::shared_ptr<Completion>> started;
        for (int i = 0; i < kCount; ++i) {
          auto& tensor = tensors[static_cast<std::size_t>(i)];
          rank.fill(tensor, static_cast<float>(i * (rank.rank() + 1)));
          started.push_back(rank.submit(rank.work(Verb::allreduce, std::to_string(i), {&tensor})));
        }
        for (const auto& completion : started) ASSERT_EQ(rank.finish(completion), "");
        for (int i = 0; i < kCount; ++i) {
          EXPECT_EQ(rank.read(tensors[static_cast<std::size_t>(i)]),
                    all(70, static_cast<float>(i) * total(rank.size())));
        }
      }
    });
  }
}

TEST_F(NcclTest, AverageScaleAndCompressionOfAGroup) {
  run({.ranks = 3}, [](DeviceRank& rank, World&) {
    DeviceTensor a(100), b(33);
    rank.fill(a, 1.0F);
    rank.fill(b, 2.0F);
    auto work = rank.work(Verb::allreduce, "average", {&a, &b});
    work->request.scale.divisor = rank.size();
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(a), all(100, 1.0F));
    EXPECT_EQ(rank.read(b), all(33, 2.0F));
    work = rank.work(Verb::allreduce, "scaled", {&a, &b});
    work->request.scale = {0.5, 3.0, 1};
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(a), all(100, 4.5F));
    EXPECT_EQ(rank.read(b), all(33, 9.0F));
    work = rank.work(Verb::allreduce, "compressed", {&a, &b});
    work->request.scale = {2.0, 0.5, 1};
    work->request.wire_dtype = static_cast<std::int8_t>(DType::bfloat16);
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(a), all(100, 13.5F));
    EXPECT_EQ(rank.read(b), all(33, 27.0F));
  });
  EXPECT_GT(orders.own_ops, 0);  // NCCL applies the factor
}

TEST_F(NcclTest, BroadcastOfSeveralTensorsAndIntoAnother) {
  run({.ranks = 3}, [](DeviceRank& rank, World&) {
    const int root = rank.size() - 1;
    DeviceTensor a(10), b(77), into(10);
    rank.fill(a, static_cast<float>(rank.rank()));
    rank.fill(b, static_cast<float>(10 * rank.rank()));
    auto work = rank.work(Verb::broadcast, "apart", {&a});
    work->outputs = {into.values.data()};
    work->request.root = root;
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(into), all(10, static_cast<float>(root)));
    EXPECT_EQ(rank.read(a), all(10, static_cast<float>(rank.rank())));
    work = rank.work(Verb::broadcast, "both", {&a, &b});
    work->request.root = root;
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(a), all(10, static_cast<float>(root)));
    EXPECT_EQ(rank.read(b), all(77, static_cast<float>(10 * root)));
  });
}

// NCCL scales while it adds, so a bucket is reduced in place by one call and no kernel.
TEST_F(NcclTest, ABucketIsNeitherPackedNorUnpacked) {
  run({.ranks = 2}, [](DeviceRank& rank, World&) {
    DeviceTensor bucket(1000);
    for (int step = 0; step < 3; ++step) {
      rank.fill(bucket, static_cast<float>(rank.rank() + 1));
      auto work = rank.work(Verb::allreduce, "bucket", {&bucket});
      work->request.scale.divisor = rank.size();
      ASSERT_EQ(rank.finish(rank.submit(work)), "");
      EXPECT_EQ(rank.read(bucket), all(1000, 1.5F));
    }
    EXPECT_TRUE(rank.fake().launched().empty());
    EXPECT_EQ(rank.fake().calls("cuMemcpyAsync"), 0);
  });
}

// NVLink SHARP adds, and does not scale.
TEST_F(NcclTest, ASwitchIsAskedForPlainSums) {
  run({.ranks = 3, .multicast = true}, [](DeviceRank& rank, World&) {
    if (!rank.device().has_kernels()) GTEST_SKIP() << "built without nvcc: there are no kernels";
    DeviceTensor bucket(1000), other(7);
    rank.fill(bucket, static_cast<float>(rank.rank() + 1));
    auto work = rank.work(Verb::allreduce, "bucket", {&bucket});
    work->request.scale = {2.0, 1.0, rank.size()};
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(bucket), all(1000, 4.0F));
    rank.fill(other, 3.0F);
    work = rank.work(Verb::allreduce, "both", {&bucket, &other});
    work->request.scale.divisor = rank.size();
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(bucket), all(1000, 4.0F));
    EXPECT_EQ(rank.read(other), all(7, 3.0F));
  });
  EXPECT_EQ(orders.own_ops, 0);
}

TEST_F(NcclTest, BucketsStayRegisteredUntilTheirRelease) {
  run({.ranks = 2, .streams = 2}, [this](DeviceRank& rank, World& world) {
    DeviceTensor bucket(100), other(50);
    auto held = rank.engine().register_memory(bucket.values.data(), 100 * sizeof(float));
    world.exchange("");
    EXPECT_EQ(orders.registered, 0);  // there is no communicator yet
    world.exchange("");
    for (int step = 0; step < 3; ++step) {
      rank.fill(bucket, 1.0F);
      ASSERT_EQ(rank.allreduce("x", bucket), "");
      EXPECT_EQ(rank.read(bucket), all(100, 2.0F));
    }
    const auto others = rank.engine().register_memory(other.values.data(), 50 * sizeof(float));
    ASSERT_EQ(rank.allreduce("y", other), "");
    rank.read(other);
    world.exchange("");
    EXPECT_EQ(orders.registered, 2 * 2 * 2);  // ranks, streams, buckets
    EXPECT_EQ(orders.deregistered, 0);
    world.exchange("");
    held.reset();
    world.exchange("");
    EXPECT_EQ(orders.deregistered, 2 * 2);
    world.exchange("");
  });
  EXPECT_EQ(orders.deregistered, orders.registered);
}

TEST_F(NcclTest, RegisteredMemoryIsReleasedWhenTheDeviceIsDone) {
  run({.ranks = 2, .streams = 1}, [this](DeviceRank& rank, World& world) {
    DeviceTensor bucket(100);
    auto held = rank.engine().register_memory(bucket.values.data(), 100 * sizeof(float));
    rank.fill(bucket, 1.0F);
    ASSERT_EQ(rank.allreduce("x", bucket), "");
    std::promise<void> gate;
    rank.hold(gate.get_future().share());
    ASSERT_EQ(rank.allreduce("x", bucket), "");
    auto freeing = std::async(std::launch::async, [&] { held.reset(); });
    EXPECT_EQ(orders.deregistered, 0);
    world.exchange("");
    gate.set_value();
    freeing.get();
    EXPECT_GT(orders.deregistered, 0);
    EXPECT_EQ(rank.read(bucket), all(100, 4.0F));
  });
}

// Rank r contributes r + 1 rows of one tensor and 4 rows of another, as a group.
TEST_F(NcclTest, AllgatherOfDifferentSizes) {
  for (const int ranks : {1, 2, 3}) {
    run({.ranks = ranks}, [](DeviceRank& rank, World&) {
      DeviceTensor uneven(static_cast<std::size_t>(rank.rank()) + 1), even(4);
      for (int step = 0; step < 3; ++step) {
        rank.fill(uneven, static_cast<float>(rank.rank()));
        rank.fill(even, static_cast<float>(10 * rank.rank()));
        const auto completion = rank.submit(rank.work(Verb::allgather, "g", {&uneven, &even}));
        ASSERT_EQ(rank.finish(completion), "");
        std::vector<float> expected, other;
        for (int r = 0; r < rank.size(); ++r) {
          expected.insert(expected.end(), static_cast<std::size_t>(r) + 1, static_cast<float>(r));
          other.insert(other.end(), 4, static_cast<float>(10 * r));
        }
        EXPECT_EQ(completion->results.at(0)->device(), rank.device().number());
        EXPECT_EQ(rank.read(*completion->results.at(0)), expected);
        EXPECT_EQ(rank.read(*completion->results.at(1)), other);
      }
    });
  }
}

// Rank r sends r + s rows to rank s.
TEST_F(NcclTest, AlltoallOfDifferentSizes) {
  for (const int ranks : {1, 3}) {
    run({.ranks = ranks}, [](DeviceRank& rank, World&) {
      const int size = rank.size(), self = rank.rank();
      std::vector<std::int64_t> splits, expected_splits;
      std::vector<float> expected;
      for (int r = 0; r < size; ++r) {
        splits.push_back(self + r);
        expected_splits.push_back(self + r);
        expected.insert(expected.end(), static_cast<std::size_t>(self + r), static_cast<float>(r));
      }
      DeviceTensor tensor(static_cast<std::size_t>(std::accumulate(splits.begin(), splits.end(), std::int64_t{0})));
      rank.fill(tensor, static_cast<float>(self));
      auto work = rank.work(Verb::alltoall, "a", {&tensor});
      work->splits = splits;
      const auto completion = rank.submit(work);
      ASSERT_EQ(rank.finish(completion), "");
      EXPECT_EQ(completion->received_splits, expected_splits);
      EXPECT_EQ(completion->results.at(0)->device(), rank.device().number());
      EXPECT_EQ(rank.read(*completion->results.at(0)), expected);
    });
  }
}

TEST_F(NcclTest, ReduceScatterOfEvenAndUnevenRows) {
  for (const int ranks : {1, 2, 3}) {
    run({.ranks = ranks}, [](DeviceRank& rank, World&) {
      DeviceTensor even(12), uneven(8);
      rank.fill(even, static_cast<float>(rank.rank() + 1));
      rank.fill(uneven, static_cast<float>(rank.rank() + 1));
      auto work = rank.work(Verb::reduce_scatter, "r", {&even, &uneven});
      work->request.scale.divisor = rank.size();
      const auto completion = rank.submit(work);
      ASSERT_EQ(rank.finish(completion), "");
      const auto size = static_cast<std::size_t>(rank.size());
      const float mean = total(rank.size()) / static_cast<float>(rank.size());
      EXPECT_EQ(completion->results.at(0)->device(), rank.device().number());
      EXPECT_EQ(rank.read(*completion->results.at(0)), all(12 / size, mean));
      const std::size_t more = static_cast<std::size_t>(rank.rank()) < 8 % size ? 1 : 0;
      EXPECT_EQ(rank.read(*completion->results.at(1)), all(8 / size + more, mean));
    });
  }
}

// Sizes are exchanged and results are allocated before the framework has computed the tensors.
TEST_F(NcclTest, CollectivesDoNotWaitForTheDevice) {
  run({.ranks = 2}, [](DeviceRank& rank, World&) {
    std::promise<void> gate;
    DeviceTensor tensor(100), reduced(10);
    rank.fill(tensor, 1.0F);
    ASSERT_EQ(rank.allreduce("first", tensor), "");  // makes the streams
    rank.hold(gate.get_future().share());
    rank.fill(tensor, 3.0F);
    rank.fill(reduced, 2.0F);
    auto work = rank.work(Verb::alltoall, "a", {&tensor});
    work->splits = {50, 50};
    const std::vector<std::shared_ptr<Completion>> started = {
        rank.submit(rank.work(Verb::allgather, "g", {&tensor})),
        rank.submit(rank.work(Verb::reduce_scatter, "r", {&tensor})), rank.submit(work),
        rank.submit(rank.work(Verb::allreduce, "x", {&reduced}))};
    for (const auto& completion : started) {
      ASSERT_EQ(rank.finish(completion), "");
      EXPECT_FALSE(rank.device().is_done(*completion->on_device->done));
    }
    gate.set_value();
    EXPECT_EQ(rank.read(*started[0]->results.at(0)), all(200, 3.0F));
    EXPECT_EQ(rank.read(*started[1]->results.at(0)), all(50, 6.0F));
    EXPECT_EQ(rank.read(*started[2]->results.at(0)), all(100, 3.0F));
    EXPECT_EQ(rank.read(reduced), all(10, 4.0F));
  });
}

TEST_F(NcclTest, ReductionsThatNcclLacksUseTheHost) {
  run({.ranks = 2}, [](DeviceRank& rank, World&) {
    std::vector<std::int16_t> values(10, static_cast<std::int16_t>(rank.rank() + 1));
    DeviceTensor none(0);
    auto work = rank.work(Verb::allreduce, "x", {&none});
    work->request.members = {{DType::int16, {10}}};
    work->inputs = work->outputs = {values.data()};
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    rank.read(none);
    EXPECT_EQ(values, std::vector<std::int16_t>(10, 3));
  });
}

TEST_F(NcclTest, JoinedRanksContributeZeros) {
  run({.ranks = 2}, [](DeviceRank& rank, World&) {
    DeviceTensor tensor(50);
    for (int step = 0; rank.rank() == 0 && step < 3; ++step) {
      rank.fill(tensor, 5.0F);
      ASSERT_EQ(rank.allreduce("x", tensor), "");
      EXPECT_EQ(rank.read(tensor), all(50, 5.0F));
    }
    const auto joined = rank.engine().join();
    rank.engine().wait(*joined);
    EXPECT_EQ(joined->number, 0);
  });
}

}  // namespace
}  // namespace perseus::testing
