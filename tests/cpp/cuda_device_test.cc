// Tests a CUDA device over a fake driver: order between streams, packing and failures.
#include "device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "cuda_fake.h"
#include "device/host/kernels.h"
#include "kernels_reference.h"

namespace perseus {
namespace {

using cuda::CudaDevice;
using testing::FakeCuda;
using testing::FakeStreams;

// Returns the text of the Error that `action` throws.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class CudaStreams : public ::testing::TestWithParam<FakeStreams> {
 protected:
  FakeCuda fake{GetParam()};
  std::shared_ptr<CudaDevice> device = CudaDevice::open(fake.driver(), 0);
};

TEST_P(CudaStreams, OneWaitsForAnotherByAnEvent) {
  const auto theirs = fake.make_stream();
  const auto ours = device->make_stream();
  int value = 0, copied = 0;
  fake.enqueue(theirs, [&] { value = 7; });
  device->wait(*ours, *device->record(theirs));
  device->copy(*ours, &copied, &value, sizeof value);
  const auto done = device->record(*ours);
  device->synchronize(*done);
  EXPECT_EQ(copied, 7);
  EXPECT_TRUE(device->is_done(*done));
}

TEST_P(CudaStreams, AnEventIsReusedAfterItsRelease) {
  for (int i = 0; i < 10; ++i) device->synchronize(*device->record(0));
  EXPECT_EQ(fake.calls("cuEventCreate"), 1);
}

TEST_P(CudaStreams, TheCurrentDeviceIsRestored) {
  const auto stream = device->make_stream();
  const auto memory = device->allocate_on(stream, 8);
  const auto pinned = device->allocate_pinned(8);
  device->copy(*stream, memory->data(), pinned.get(), 8);
  device->synchronize(*device->record(*stream));
  EXPECT_FALSE(device->is_capturing(*stream));
  EXPECT_EQ(FakeCuda::pushed(), 0);
  {
    const auto used = device->use();
    EXPECT_EQ(FakeCuda::pushed(), 1);
    device->activate();
  }
  EXPECT_EQ(FakeCuda::pushed(), 0);
  fake.fail("cuEventRecord", 719);
  EXPECT_THROW(device->record(*stream), Error);
  EXPECT_EQ(FakeCuda::pushed(), 0);
}

INSTANTIATE_TEST_SUITE_P(, CudaStreams, ::testing::Values(FakeStreams::late, FakeStreams::threads),
                         [](const auto& kind) { return kind.param == FakeStreams::late ? "late" : "threads"; });

TEST(CudaDevice, QueuedWorkIsNotDoneBeforeASynchronization) {
  FakeCuda fake;
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto stream = device->make_stream();
  int from = 7, to = 0;
  device->copy(*stream, &to, &from, sizeof from);
  const auto event = device->record(*stream);
  EXPECT_FALSE(device->is_done(*event));
  EXPECT_EQ(to, 0);
  device->synchronize(*event);
  EXPECT_EQ(to, 7);
}

// Memory that a framework still reads when its last owner releases it.
TEST(CudaDevice, MemoryIsFreedInTheOrderOfItsLastStream) {
  FakeCuda fake;
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto framework = fake.make_stream();
  auto memory = device->allocate_on(device->make_stream(), 4);
  int from = 7, to = 0;
  device->copy(framework, memory->data(), &from, sizeof from);
  device->copy(framework, &to, memory->data(), sizeof to);
  memory->pass_to(framework);
  memory.reset();
  EXPECT_EQ(fake.calls("cuMemFreeAsync"), 1);
  EXPECT_EQ(to, 0);
  fake.synchronize(framework);
  EXPECT_EQ(to, 7);
}

TEST(CudaDevice, MemoryIsNotFreedInsideAGraph) {
  FakeCuda fake;
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto framework = fake.make_stream();
  const auto ours = device->make_stream();
  auto memory = device->allocate_on(ours, 4), other = device->allocate_on(ours, 4);
  memory->pass_to(framework);
  other->pass_to(framework);
  fake.capture(framework, true);
  memory.reset();
  other.reset();
  EXPECT_EQ(fake.calls("cuMemFreeAsync"), 0);
  fake.capture(framework, false);
  memory = device->allocate_on(ours, 4);
  EXPECT_EQ(fake.calls("cuMemFreeAsync"), 2);
}

// cuMemFree would wait for the whole device.
TEST(CudaDevice, ADriverWithoutStreamOrderedMemoryUsesMemoryAgain) {
  FakeCuda fake;
  fake.fail("cuMemPoolCreate", 801);
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto stream = device->make_stream();
  auto memory = device->allocate_on(stream, 1000);
  auto* const address = memory->data();
  memory.reset();
  memory = device->allocate_on(stream, 1000);
  EXPECT_NE(memory->data(), address) << "the stream may still use the first memory";
  memory.reset();
  device->synchronize(*device->record(*stream));
  memory = device->allocate_on(stream, 900);
  EXPECT_EQ(memory->data(), address);
  EXPECT_NE(device->allocate_on(stream, 100)->data(), address);
  EXPECT_EQ(fake.calls("cuMemFree"), 0);
}

// A framework's stream waits for something that happens much later, perhaps for another process set.
TEST(CudaDevice, NeitherMemoryNorPackingWaitsForOtherStreams) {
  FakeCuda fake(FakeStreams::threads);
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto stream = device->make_stream();
  const auto busy = fake.make_stream();
  std::promise<void> gate;
  fake.enqueue(busy, [opened = gate.get_future().share()] { opened.wait(); });
  std::vector<float> a(200), b(200), packed(400);
  auto work = std::async(std::launch::async, [&] {
    for (std::int64_t layout = 1; layout <= 200; ++layout) {
      const auto memory = device->allocate_on(stream, static_cast<std::size_t>(layout) * 100);
      device->zero(*stream, memory->data(), static_cast<std::size_t>(layout) * 100);
      device->allocate_pinned(static_cast<std::size_t>(layout));
      const std::vector<Piece> pieces = {{a.data(), layout}, {b.data(), layout}};
      device->pack(*stream, {}, pieces, packed.data());
    }
    device->synchronize(*device->record(*stream));
  });
  EXPECT_EQ(work.wait_for(std::chrono::seconds(60)), std::future_status::ready) << "a call waits for the device";
  gate.set_value();
  work.get();
}

TEST(CudaDevice, ZerosAreWrittenInTheOrderOfTheStream) {
  FakeCuda fake;
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto stream = device->make_stream();
  const auto memory = device->allocate_on(stream, 100);
  device->zero(*stream, memory->data(), 100);
  EXPECT_NE(std::memcmp(memory->data(), std::vector<char>(100).data(), 100), 0);
  device->synchronize(*device->record(*stream));
  EXPECT_EQ(std::memcmp(memory->data(), std::vector<char>(100).data(), 100), 0);
}

TEST(CudaDevice, DetectsAStreamUnderCapture) {
  FakeCuda fake;
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto stream = fake.make_stream();
  EXPECT_FALSE(device->is_capturing(stream));
  fake.capture(stream, true);
  EXPECT_TRUE(device->is_capturing(stream));
}

TEST(CudaDevice, FailuresHaveTheDriversText) {
  FakeCuda fake;
  const auto device = CudaDevice::open(fake.driver(), 0);
  const auto stream = device->make_stream();
  fake.fail("cuMemAllocFromPoolAsync", 2);
  EXPECT_EQ(refusal([&] { device->allocate_on(stream, 64); }),
            "cuMemAllocFromPoolAsync: CUDA_ERROR_OF_THE_TEST (2): the test wants it so");
  try {
    device->allocate_on(stream, 64);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  }
}

TEST(CudaDevice, AMissingDeviceIsAnInvalidArgument) {
  FakeCuda fake(FakeStreams::late, 2);
  EXPECT_EQ(refusal([&] { CudaDevice::open(fake.driver(), 2); }),
            "there is no CUDA device 2: this process sees 2; check CUDA_VISIBLE_DEVICES and the device that the "
            "program selects");
}

TEST(CudaDriver, AMissingOrOldDriverIsReportedWithWhatToDo) {
  EXPECT_NE(refusal([] { cuda::open_driver("libcuda-of-no-machine.so.1"); }).find("install NVIDIA's driver"),
            std::string::npos);
  EXPECT_NE(refusal([] { cuda::open_driver("libc.so.6"); }).find("has no function cuInit"), std::string::npos);
  FakeCuda fake;
  fake.pretend_version(10020);
  EXPECT_EQ(refusal([&] { cuda::start_driver(fake.driver()); }),
            "CUDA's driver is of version 10.2, and at least 11.0 is needed; install a newer one");
  fake.pretend_version(11000);
  cuda::start_driver(fake.driver());
  fake.fail("cuInit", 100);
  EXPECT_NE(refusal([&] { cuda::start_driver(fake.driver()); }).find("cuInit"), std::string::npos);
}

TEST(CudaDriver, NoDeviceIsAnError) {
  FakeCuda fake(FakeStreams::late, 0);
  EXPECT_NE(refusal([&] { cuda::start_driver(fake.driver()); }).find("CUDA_VISIBLE_DEVICES"), std::string::npos);
}

}  // namespace
}  // namespace perseus
