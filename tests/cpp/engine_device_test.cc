// Tests collectives of tensors on a device through host memory, and the order of work on streams.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine_device_rank.h"

namespace perseus {
namespace {

using testing::DeviceRank;
using testing::DeviceTensor;
using testing::FakeCuda;
using testing::FakeStreams;
using testing::Ranks;
using testing::World;

struct DeviceCase {
  int ranks;
  FakeStreams kind;
};

class OnDeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void run(const std::function<void(DeviceRank&)>& body) {
    FakeCuda fake(GetParam().kind, GetParam().ranks);
    testing::run_world(Ranks::threads, GetParam().ranks, [&](World& world) {
      DeviceRank rank(world, fake, 0);
      body(rank);
      rank.engine().close(std::chrono::seconds(10));
    });
  }
  static float total(int size) { return static_cast<float>(size * (size + 1)) / 2; }
};

// The tensor is computed after the request, and read before the framework has waited.
TEST_P(OnDeviceTest, AllreduceFollowsTheFrameworksStream) {
  run([](DeviceRank& rank) {
    DeviceTensor tensor(1000);
    for (int step = 0; step < 3; ++step) {
      rank.fill(tensor, static_cast<float>(rank.rank() + 1));
      ASSERT_EQ(rank.allreduce("x", tensor), "");
      EXPECT_EQ(rank.read(tensor), std::vector<float>(1000, total(rank.size())));
    }
  });
}

TEST_P(OnDeviceTest, ManyRequestsInABurstAndInAnyOrder) {
  run([](DeviceRank& rank) {
    constexpr int kCount = 20;
    std::vector<DeviceTensor> tensors(kCount, DeviceTensor(64));
    std::vector<std::shared_ptr<Completion>> started(kCount);
    for (int i = 0; i < kCount; ++i) {
      const int place = (i * 7 + rank.rank()) % kCount;
      auto& tensor = tensors[static_cast<std::size_t>(place)];
      rank.fill(tensor, static_cast<float>(place));
      auto work = rank.work(Verb::allreduce, std::to_string(place), {&tensor});
      work->request.scale.divisor = rank.size();
      started[static_cast<std::size_t>(place)] = rank.submit(work);
    }
    for (const auto& completion : started) ASSERT_EQ(rank.finish(completion), "");
    for (int i = 0; i < kCount; ++i) {
      const auto& tensor = tensors[static_cast<std::size_t>(i)];
      EXPECT_EQ(rank.read(tensor), std::vector<float>(64, static_cast<float>(i)));
    }
  });
}

TEST_P(OnDeviceTest, AGroupWithScaleAndCompression) {
  run([](DeviceRank& rank) {
    DeviceTensor a(100), b(33);
    rank.fill(a, 1.0F);
    rank.fill(b, 2.0F);
    auto work = rank.work(Verb::allreduce, "group", {&a, &b});
    work->request.scale = {0.5, 3.0, 1};
    work->request.wire_dtype = static_cast<std::int8_t>(DType::bfloat16);
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    const auto size = static_cast<float>(rank.size());
    EXPECT_EQ(rank.read(a), std::vector<float>(100, 1.5F * size));
    EXPECT_EQ(rank.read(b), std::vector<float>(33, 3.0F * size));
  });
}

TEST_P(OnDeviceTest, BroadcastFromTheLastRankIntoAnotherTensor) {
  run([](DeviceRank& rank) {
    DeviceTensor from(10), to(10);
    rank.fill(from, static_cast<float>(rank.rank()));
    auto work = rank.work(Verb::broadcast, "b", {&from});
    work->outputs = {to.values.data()};
    work->request.root = rank.size() - 1;
    ASSERT_EQ(rank.finish(rank.submit(work)), "");
    EXPECT_EQ(rank.read(to), std::vector<float>(10, static_cast<float>(rank.size() - 1)));
    EXPECT_EQ(rank.read(from), std::vector<float>(10, static_cast<float>(rank.rank())));
  });
}

TEST_P(OnDeviceTest, AllgatherResultsAreOnTheDevice) {
  run([](DeviceRank& rank) {
    DeviceTensor tensor(static_cast<std::size_t>(rank.rank()) + 1);
    rank.fill(tensor, static_cast<float>(rank.rank()));
    const auto completion = rank.submit(rank.work(Verb::allgather, "g", {&tensor}));
    ASSERT_EQ(rank.finish(completion), "");
    std::vector<float> expected;
    for (int r = 0; r < rank.size(); ++r) {
      expected.insert(expected.end(), static_cast<std::size_t>(r) + 1, static_cast<float>(r));
    }
    EXPECT_EQ(rank.read(*completion->results.at(0)), expected);
  });
}

// Uses checked splits, as torch.distributed does: all ranks know all sizes before any data is sent.
TEST_P(OnDeviceTest, AlltoallWithCheckedSplits) {
  run([](DeviceRank& rank) {
    const auto size = static_cast<std::size_t>(rank.size());
    DeviceTensor tensor(size);
    const auto send = [&](const std::string& name, std::int64_t from_each) {
      rank.fill(tensor, static_cast<float>(rank.rank()));
      auto work = rank.work(Verb::alltoall, name, {&tensor});
      work->splits.assign(size, 1);
      work->expected.assign(size, from_each);
      work->request.checked = true;
      const auto completion = rank.submit(work);
      const auto error = rank.finish(completion);
      return error.empty() ? std::pair(error, rank.read(*completion->results.at(0)))
                           : std::pair(error, std::vector<float>());
    };
    std::vector<float> expected;
    for (int r = 0; r < rank.size(); ++r) expected.push_back(static_cast<float>(r));
    EXPECT_EQ(send("fits", 1), std::pair(std::string(), expected));
    EXPECT_NE(send("does not", 2).first.find("which expects 2; nothing was communicated"), std::string::npos);
    EXPECT_EQ(send("fits again", 1).second, expected);
  });
}

TEST_P(OnDeviceTest, JoinedRanksContributeZeros) {
  run([](DeviceRank& rank) {
    DeviceTensor tensor(50);
    if (rank.rank() == 0) {
      for (int step = 0; step < 3; ++step) {
        rank.fill(tensor, 5.0F);
        ASSERT_EQ(rank.allreduce("x", tensor), "");
        EXPECT_EQ(rank.read(tensor), std::vector<float>(50, 5.0F));
      }
    }
    const auto joined = rank.engine().join();
    rank.engine().wait(*joined);
    EXPECT_EQ(joined->number, 0);
  });
}

TEST_P(OnDeviceTest, HostAndDeviceUnderOneNameFailOnAllRanks) {
  if (GetParam().ranks == 1) GTEST_SKIP() << "takes two ranks";
  run([](DeviceRank& rank) {
    DeviceTensor tensor(8);
    rank.fill(tensor, 1.0F);
    auto work = rank.work(Verb::allreduce, "x", {&tensor});
    std::shared_ptr<Completion> completion;
    if (rank.rank() == 0) {
      work->request.on_host = true;
      rank.engine().submit(work);
      completion = completion_of(work);
    } else {
      completion = rank.submit(work);
    }
    EXPECT_EQ(rank.finish(completion), std::string("allreduce 'x': rank 0 has it on the host, ") +
                                           (rank.size() == 2 ? "rank 1 has" : "ranks 1, 2 have") +
                                           " it on an accelerator; all ranks must pass the same");
    rank.read(tensor);
  });
}

INSTANTIATE_TEST_SUITE_P(, OnDeviceTest,
                         ::testing::Values(DeviceCase{1, FakeStreams::late}, DeviceCase{2, FakeStreams::late},
                                           DeviceCase{3, FakeStreams::threads}),
                         [](const auto& info) { return std::to_string(info.param.ranks) + "_ranks"; });

TEST(OnDevice, AStreamUnderCaptureIsRejected) {
  FakeCuda fake;
  const auto device = cuda::CudaDevice::open(fake.driver(), 0);
  const auto stream = fake.make_stream();
  auto place = on_device(device, stream, "allreduce 'x'");
  place->done = device->record(stream);
  fake.capture(stream, true);
  EXPECT_THROW(on_device(device, stream, "allreduce 'x'"), Error);
  try {
    arrive(*place, stream);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("being captured into a CUDA graph"), std::string::npos);
  }
}

// The stream of the request waits for the result, too.
TEST(OnDevice, ACaptureOfTheStreamOfTheRequestIsRejected) {
  FakeCuda fake;
  const auto device = cuda::CudaDevice::open(fake.driver(), 0);
  const auto asked = fake.make_stream(), waits = fake.make_stream();
  auto place = on_device(device, asked, "allreduce 'x'");
  place->done = device->record(asked);
  fake.capture(asked, true);
  for (const auto& touch : {&arrive, &extend}) {
    try {
      touch(*place, waits);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument) << error.what();
      EXPECT_NE(std::string(error.what()).find("the stream of the request is being captured into"), std::string::npos);
    }
  }
  EXPECT_EQ(fake.calls("cuStreamWaitEvent"), 0) << "neither stream was changed";
  EXPECT_FALSE(place->arrived);
  fake.capture(asked, false);
  arrive(*place, waits);
}

// A handle that is dropped keeps its tensors for as long as the device works on them.
TEST(OnDevice, TensorsAreInUseUntilTheDeviceIsDoneOrTheCallersStreamsWait) {
  FakeCuda fake;
  const auto device = cuda::CudaDevice::open(fake.driver(), 0);
  const auto stream = fake.make_stream(), other = fake.make_stream();
  const auto ours = device->make_stream();
  auto place = on_device(device, stream, "x");
  EXPECT_FALSE(in_use(*place));  // no work has started
  int value = 0;
  fake.enqueue(*ours, [&] { value = 1; });
  place->done = device->record(*ours);
  EXPECT_TRUE(in_use(*place));
  arrive(*place, other);
  EXPECT_FALSE(in_use(*place));
  fake.synchronize(stream);  // the stream that submitted the request, which may use the memory again
  EXPECT_EQ(value, 1);
}

// A framework copies the results on the first stream; other streams wait for that copy too.
TEST(OnDevice, ExtendedWorkEndsLaterAndAllWaitForIt) {
  FakeCuda fake;
  const auto device = cuda::CudaDevice::open(fake.driver(), 0);
  const auto asked = fake.make_stream(), first = fake.make_stream(), second = fake.make_stream();
  const auto ours = device->make_stream();
  auto place = on_device(device, asked, "x");
  EXPECT_TRUE(is_over(*place));  // no work has started
  extend(*place, first);         // has no effect
  EXPECT_FALSE(place->done);
  int value = 0;
  fake.enqueue(*ours, [&] { value = 1; });
  place->done = device->record(*ours);
  EXPECT_FALSE(is_over(*place));
  arrive(*place, first);
  fake.enqueue(first, [&] { value *= 10; });
  extend(*place, first);
  device->synchronize(*device->record(*ours));
  EXPECT_FALSE(is_over(*place));
  arrive(*place, second);
  fake.synchronize(asked);
  EXPECT_EQ(value, 10);
  fake.enqueue(second, [&] { ++value; });
  fake.synchronize(second);
  EXPECT_EQ(value, 11);
  EXPECT_TRUE(is_over(*place));
}

TEST(OnDevice, AFailureHasTheDevicesText) {
  FakeCuda fake(FakeStreams::late, 2);
  testing::run_world(Ranks::threads, 2, [&](World& world) {
    DeviceRank rank(world, fake, 0);
    DeviceTensor tensor(10);
    rank.fill(tensor, 1.0F);
    ASSERT_EQ(rank.allreduce("x", tensor), "");
    rank.read(tensor);
    world.exchange("");
    if (world.rank == 0) fake.fail("cuMemcpyAsync", 700);
    world.exchange("");
    // The failure of the own device, or of the other rank's if it was reported first.
    const auto text = rank.allreduce("x", tensor);
    EXPECT_TRUE(text.starts_with("allreduce 'x': ")) << text;
    EXPECT_TRUE(text.ends_with("cuMemcpyAsync: CUDA_ERROR_OF_THE_TEST (700): the test wants it so")) << text;
    world.exchange("");
    if (world.rank == 0) fake.fail("cuMemcpyAsync", 0);
    world.exchange("");
    rank.engine().close(std::chrono::seconds(0));
  });
}

}  // namespace
}  // namespace perseus
