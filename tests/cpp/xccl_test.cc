// Tests the differences between libraries shaped like NCCL, their failures, and how ranks connect.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <numeric>
#include <random>

#include "device/host/kernels.h"
#include "transport/xccl/libraries/library.h"
#include "xccl_cases.h"

namespace perseus::testing {
namespace {

TEST(Xccl, AllRanksGetOneTextIfALibraryIsMissing) {
  run_world(Ranks::threads, 3, [](World& world) {
    auto mine = joining(blocking_library());
    if (world.rank == 1) mine = {nullptr, "NCCL is not installed", mine.device};
    EXPECT_EQ(thrown_by([&] { connect_all(world, mine); }), "rank 1: NCCL is not installed");
  });
}

TEST(Xccl, AllRanksGetOneTextIfVersionsDiffer) {
  run_world(Ranks::threads, 3, [](World& world) {
    auto library = blocking_library();
    if (world.rank == 2) library->version = "2.9.9";
    const auto text = thrown_by([&] { connect_all(world, joining(library)); });
    EXPECT_EQ(text,
              "rank 0 has Blocking 2.3.4 and rank 2 has Blocking 2.9.9, which do not connect; install the same version "
              "for all ranks");
  });
}

TEST(Xccl, AllRanksGetOneTextIfOneCannotConnect) {
  FakeOrders orders;
  orders.fail_init = 3;
  orders.fail_rank = 1;
  run_world(Ranks::threads, 2, [](World& world) {
    const xccl::Options options{.start_timeout = std::chrono::milliseconds(400), .queue_only = false};
    const auto library = queued_library();
    library->advice = "Plug it in";
    const auto text = thrown_by([&] { connect_all(world, joining(library, true), options); });
    // The text must not be that rank 0 waited too long for rank 1.
    EXPECT_EQ(text,
              "rank 1: fakeCommInitRank of Queued 2.3.4 failed with code 3: internal error: the cable is out. Plug it "
              "in");
  });
}

TEST(Xccl, RanksOutsideAGroupOnlyExchangeBytes) {
  run_world(Ranks::threads, 4, [](World& world) {
    const std::vector<int> members = {1, 3};
    const auto transport =
        xccl::connect(joining(blocking_library()), members, world.rank, world.exchange, world.liveness);
    ASSERT_EQ(transport != nullptr, world.rank % 2 == 1);
    if (!transport) return;
    EXPECT_EQ(transport->rank(), world.rank / 2);
    std::vector<float> values = {static_cast<float>(world.rank)};
    ASSERT_TRUE(sum(*transport, values).ok());
    EXPECT_EQ(values.front(), 4.0F);
  });
}

TEST(Xccl, GroupsThatOverlapWorkAtOnce) {
  run_world(Ranks::threads, 3, [](World& world) {
    const auto all = connect_all(world, joining(queued_library(), true));
    const std::vector<int> some = {0, 2};
    const auto pair = xccl::connect(joining(queued_library(), true), some, world.rank, world.exchange, world.liveness);
    auto other = std::async(std::launch::async, [&] {
      for (int round = 0; pair && round < 50; ++round) {
        std::vector<float> values(100, 1.0F);
        EXPECT_TRUE(sum(*pair, values).ok());
        EXPECT_EQ(values.back(), 2.0F);
      }
    });
    for (int round = 0; round < 50; ++round) {
      std::vector<float> values(1000, 1.0F);
      EXPECT_TRUE(sum(*all, values).ok());
      EXPECT_EQ(values.back(), 3.0F);
    }
    other.get();
  });
}

TEST(Xccl, AnErrorHasTheCallAndTheLibrarysText) {
  FakeOrders orders;
  orders.fail_rank = 0;
  run_world(Ranks::threads, 1, [&](World& world) {
    auto transport = connect_all(world, joining(queued_library(), true));
    orders.fail_all_reduce = 3;
    std::vector<float> values(10);
    const auto status = sum(*transport, values);
    expect_text(status, ErrorKind::transport,
                "fakeAllReduce of Queued 2.3.4 failed with code 3: internal error: the cable is out");
    // The failure is permanent.
    expect_text(sum(*transport, values), ErrorKind::transport, "fakeAllReduce");
    transport.reset();
    EXPECT_EQ(orders.aborted, 1);
  });
}

TEST(Xccl, ALaterErrorIsSeenAndAborts) {
  FakeOrders orders;
  orders.fail_rank = 0;
  run_world(Ranks::threads, 2, [&](World& world) {
    auto transport = connect_all(world, joining(queued_library(), true));
    if (world.rank == 1) return;  // makes rank 0 wait
    orders.async_error = 6;
    std::vector<float> values(10);
    expect_text(sum(*transport, values), ErrorKind::transport,
                "fakeCommGetAsyncError of Queued 2.3.4 failed with code 6: remote process exited: the cable is out");
    transport.reset();
    EXPECT_EQ(orders.aborted, 1);
  });
}

TEST(Xccl, QueuedWorkIsDoneWhenTheDeviceReportsIt) {
  run_world(Ranks::threads, 2, [](World& world) {
    const auto mine = joining(queued_library(), true);
    const auto transport = connect_all(world, mine, {.queue_only = true});
    std::vector<float> values(1000, 1.0F);
    for (int round = 0; round < 5; ++round) ASSERT_TRUE(sum(*transport, values).ok());
    while (!mine.device->done()) {
      ASSERT_TRUE(transport->check().ok());
      std::this_thread::yield();
    }
    EXPECT_EQ(values.back(), 32.0F);
  });
}

TEST(Xccl, TheLibraryScalesIfItCan) {
  FakeOrders orders;
  run_world(Ranks::threads, 2, [&](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true));
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(100, 6.0F);
      ASSERT_TRUE(sum(*transport, values, {.pre = 0.5, .post = 1.0, .divisor = 2}).ok());
      EXPECT_EQ(values.back(), 3.0F);
    }
  });
  EXPECT_EQ(orders.own_ops, 2) << "each rank creates one operation and uses it again";
  EXPECT_EQ(orders.destroyed, 2);
}

TEST(Xccl, DataOfASingleRankAreScaledToTheLastElement) {
  run_world(Ranks::threads, 1, [](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true));
    std::vector<float> values(40'049, 6.0F);
    ASSERT_TRUE(sum(*transport, values, {.pre = 0.5, .post = 3.0, .divisor = 1}).ok());
    EXPECT_EQ(std::count(values.begin(), values.end(), 9.0F), 40'049);
  });
}

TEST(Xccl, AnAverageOf16BitsDoesNotOverflow) {
  for (const bool reduces : {true, false}) {
    run_world(Ranks::threads, 2, [reduces](World& world) {
      auto mine = joining(queued_library());
      if (!reduces) mine.device = std::make_shared<FakeDevice>(false);
      const auto transport = connect_all(world, mine);
      // 60000 twice is more than float16 holds.
      const float large = 60000.0F;
      std::array<std::uint16_t, 1> half{};
      const Reduction narrow{DType::float32, DType::float16, ReduceOp::sum, {}};
      host::pack(narrow, &large, half.data(), 1, host::Store::cached);
      const Piece piece{half.data(), 1};
      const Reduction average{DType::float16, DType::float16, ReduceOp::sum, {1.0, 1.0, 2}};
      ASSERT_TRUE(transport->allreduce(average, {&piece, 1}, {&piece, 1}).ok());
      float result = 0;
      host::unpack(narrow, half.data(), &result, 1, host::Store::cached);
      EXPECT_EQ(result, 60000.0F);
    });
  }
}

// 100352 is more than float16 holds; half of it is exact in float16.
TEST(Xccl, AnAverageIsScaledBeforeItIsConvertedTo16Bits) {
  FakeOrders orders;
  run_world(Ranks::threads, 2, [](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true));
    float value = world.rank == 0 ? 100'352.0F : 0.0F;
    const Piece piece{&value, 1};
    const Reduction average{DType::float32, DType::float16, ReduceOp::sum, {1.0, 1.0, 2}};
    ASSERT_TRUE(transport->allreduce(average, {&piece, 1}, {&piece, 1}).ok());
    EXPECT_EQ(value, 50'176.0F);
  });
  EXPECT_EQ(orders.own_ops, 0) << "the factor is applied while packing";
}

TEST(Xccl, UnsupportedReductionsAreReportedBefore) {
  run_world(Ranks::threads, 2, [](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true));
    EXPECT_TRUE(transport->supports({DType::float16, DType::float16, ReduceOp::sum, {}}).ok());
    EXPECT_TRUE(transport->supports({DType::boolean, DType::boolean, ReduceOp::bor, {}}).ok());
    expect_text(transport->supports({DType::int16, DType::int16, ReduceOp::sum, {}}), ErrorKind::invalid_argument,
                "Queued 2.3.4 has no sum of int16 on fake GPU");
    expect_text(transport->supports({DType::int32, DType::int32, ReduceOp::bxor, {}}), ErrorKind::invalid_argument,
                "bxor of int32");
    EXPECT_TRUE(connect_all(world, joining(blocking_library()))
                    ->supports({DType::int16, DType::int16, ReduceOp::bxor, {}})
                    .ok());
  });
}

TEST(Xccl, BooleansOfALibraryAreAnyAndAll) {
  run_world(Ranks::threads, 2, [](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true));
    for (const auto op : {ReduceOp::sum, ReduceOp::min, ReduceOp::bor, ReduceOp::band}) {
      std::array<std::uint8_t, 3> values = {0, static_cast<std::uint8_t>(world.rank), 1};
      const Piece piece{values.data(), 3};
      ASSERT_TRUE(transport->allreduce({DType::boolean, DType::boolean, op, {}}, {&piece, 1}, {&piece, 1}).ok());
      const bool any = op == ReduceOp::sum || op == ReduceOp::bor;
      EXPECT_EQ(values, (std::array<std::uint8_t, 3>{0, any ? std::uint8_t{1} : std::uint8_t{0}, 1}));
    }
  });
}

TEST(Xccl, AMinimumWithANanIsANan) {
  run_world(Ranks::blocking, 2, [](World& world) {
    const auto transport = connect_all(world, joining(blocking_library()));
    std::vector<float> values = {world.rank == 0 ? NAN : 1.0F, world.rank == 0 ? 1.0F : NAN};
    const Piece piece{values.data(), 2};
    ASSERT_TRUE(
        transport->allreduce({DType::float32, DType::float32, ReduceOp::min, {}}, {&piece, 1}, {&piece, 1}).ok());
    EXPECT_TRUE(std::isnan(values[0]) && std::isnan(values[1]));
  });
}

TEST(Xccl, MemoryStaysRegisteredUntilItsRelease) {
  FakeOrders orders;
  run_world(Ranks::threads, 1, [&](World& world) {
    const auto transport = connect_all(world, joining(queued_library(), true));
    std::vector<float> values(10);
    auto registered = transport->register_memory(values.data(), sizeof(float) * values.size());
    EXPECT_EQ(registered.get(), values.data());
    EXPECT_EQ(orders.registered, 1);
    EXPECT_EQ(orders.deregistered, 0);
    registered.reset();
    EXPECT_EQ(orders.deregistered, 1);
    EXPECT_EQ(connect_all(world, joining(blocking_library()))->register_memory(values.data(), 4), nullptr);
  });
}

TEST(XcclFabric, AllRanksGetOneTextWithoutTheLibrary) {
  auto options = small_options();
  options.local_transport = LocalTransport::oneccl;
  options.oneccl_library = "/nowhere/libccl.so.2";
  const auto body = [](World& world) {
    EXPECT_TRUE(world.fabric.description().starts_with("oneCCL, control messages by shm"));
    const auto text = thrown_by([&] { world.connect_all(); });
    EXPECT_EQ(text.find("rank 0: cannot open /nowhere/libccl.so.2, which PERSEUS_ONECCL_LIBRARY names: "), 0U) << text;
    // One rank needs no library.
    const auto link = world.connect({1});
    EXPECT_EQ(link.transport != nullptr, world.rank == 1);
  };
  run_world(Ranks::processes, 2, body, options);
}

TEST(XcclLibrary, ASettingCountsAlthoughAnotherLibraryIsLoaded) {
  const LibrarySpec spec{.title = "Maths", .file = "libm.so.6", .setting = "THE_SETTING", .remedy = "", .folders = {}};
  EXPECT_EQ(open_library(spec, "").path, "libm.so.6");
  const auto text = thrown_by([&] { open_library(spec, "/nowhere/libm.so.6"); });
  EXPECT_NE(text.find("cannot open /nowhere/libm.so.6, which THE_SETTING names"), std::string::npos) << text;
}

TEST(XcclSearch, AMissingLibraryIsReportedWithWhatToInstall) {
  const auto nccl = thrown_by([] { xccl::open_nccl({"/nowhere/libnccl.so.2", ""}); });
  EXPECT_NE(nccl.find("cannot open /nowhere/libnccl.so.2, which PERSEUS_NCCL_LIBRARY names"), std::string::npos)
      << nccl;
  const LibrarySpec spec{"Nothing", "libnothing_of_the_kind.so.7", "NOTHING_LIBRARY", "Install it", {"/nowhere"}};
  EXPECT_EQ(thrown_by([&] { open_library(spec, ""); }),
            "Nothing is not installed: no libnothing_of_the_kind.so.7 was found. Install it, or set NOTHING_LIBRARY to "
            "its libnothing_of_the_kind.so.7");
}

TEST(XcclSearch, AnotherLibraryIsDetected) {
  // A library that every system has.
  const auto text = thrown_by([] { xccl::open_nccl({"libm.so.6", ""}); });
  EXPECT_EQ(
      text,
      "libm.so.6 has no ncclGetVersion: it is too old or another library; install a newer one or correct its path");
}

TEST(XcclSearch, AnOldNcclIsReportedByItsVersion) {
  const auto text = thrown_by([] { xccl::open_nccl({PERSEUS_OLD_NCCL, ""}); });
  EXPECT_NE(text.find("libnccl.so.2 is NCCL 2.11.4; 2.13 or later is needed. Install it with"), std::string::npos)
      << text;
}

TEST(XcclSearch, VersionsAreFormatted) {
  EXPECT_EQ(version_text(23203), "2.32.3");
  EXPECT_EQ(version_text(2708), "2.7.8");
  EXPECT_EQ(version_text(20'220'100), "2022.1.0");
}

// NCCL opens without a GPU, and its error about the driver is passed on.
TEST(XcclSearch, TheRealNcclHasAllFunctions) {
  const char* path = std::getenv("PERSEUS_NCCL_LIBRARY");
  if (path == nullptr) GTEST_SKIP() << "PERSEUS_NCCL_LIBRARY names no libnccl.so.2";
  const auto library = xccl::open_nccl({path, ""});
  EXPECT_EQ(library->title().substr(0, 7), "NCCL 2.");
  for (const bool there : {library->call.comm_abort != nullptr, library->call.comm_get_async_error != nullptr,
                           library->call.group_end != nullptr, library->call.red_op_destroy != nullptr}) {
    EXPECT_TRUE(there);
  }
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  run_world(Ranks::threads, 1, [&](World& world) {
    const auto text = thrown_by([&] { connect_all(world, joining(library)); });
    EXPECT_NE(text.find("ncclCommInitRank of NCCL 2."), std::string::npos) << text;
    EXPECT_NE(text.find("CUDA driver"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace perseus::testing
