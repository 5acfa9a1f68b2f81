// A job of ranks with tensors on a device: a fake driver, and a fake NCCL whose ranks are threads.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine_device_rank.h"
#include "xccl_fake.h"

namespace perseus::testing {

using OpenLibrary = std::function<std::shared_ptr<const xccl::Library>(int rank)>;

inline constexpr std::chrono::seconds kNcclPatience{30};

// Runs a job whose ranks have one device each and NCCL on `streams` streams.
struct DeviceJob {
  int ranks = 2;
  int streams = 2;
  OpenLibrary open = [](int) { return queued_library(); };
  std::chrono::milliseconds start_timeout{20'000};
  std::chrono::milliseconds timeout{0};  // of a collective; 0: none
  bool multicast = false;                // a switch adds
};

class NcclTest : public ::testing::Test {
 protected:
  void run(const DeviceJob& job, const std::function<void(DeviceRank&, World&)>& body) {
    run_with_options(job, [&](FakeCuda& fake, World& world, const EngineOptions& options) {
      DeviceRank rank(world, fake, job.streams, options);
      body(rank, world);
      rank.engine().close(std::chrono::seconds(10));
    });
  }

  // Runs a job whose ranks make their engines themselves.
  void run_with_options(const DeviceJob& job,
                        const std::function<void(FakeCuda&, World&, const EngineOptions&)>& body) {
    FakeCuda fake(FakeStreams::threads, job.ranks);
    if (job.multicast) fake.pretend_multicast();
    orders.enqueue = [&fake](xccl::Stream stream, std::function<void()> work) {
      EXPECT_GT(FakeCuda::pushed(), 0) << "NCCL uses the current device, so it must be set";
      fake.enqueue(reinterpret_cast<Stream>(stream), std::move(work));
    };
    orders.current_device = [] { return FakeCuda::current(); };
    std::vector<int> members(static_cast<std::size_t>(job.ranks));
    std::iota(members.begin(), members.end(), 0);
    run_world(Ranks::threads, job.ranks, [&](World& world) {
      EngineOptions options;
      options.negotiator.stalls.shutdown = job.timeout;
      const auto abort_group = make_abort_group(world.liveness);
      options.device_transports = [&](const auto& device, const auto& stream, const BootstrapAllgather& exchange,
                                      auto& why) {
        DeviceGroup group{members, world.rank, exchange, world.liveness, job.start_timeout, "", "", abort_group, {}};
        group.open_library = [&] { return job.open(world.rank); };
        return make_device_transport(device, stream, group, why);
      };
      body(fake, world, options);
    });
  }

  // Waits until this rank's engine has failed, and returns the error text.
  static std::string failure_of(DeviceRank& rank) {
    const auto until = std::chrono::steady_clock::now() + kNcclPatience;
    while (std::chrono::steady_clock::now() < until) {
      try {
        auto work = rank.work(Verb::barrier, "look", {});
        if (auto text = rank.finish(rank.submit(work)); !text.empty()) return text;
      } catch (const Error& error) {
        return error.what();
      }
    }
    return "rank " + std::to_string(rank.rank()) + " received no failure";
  }

  // Connects the ranks and waits for all of them.
  static void warm_up(DeviceRank& rank, World& world, DeviceTensor& tensor) {
    rank.fill(tensor, 1.0F);
    ASSERT_EQ(rank.allreduce("warm", tensor), "");
    world.exchange("");
  }

  FakeOrders orders;
};

inline std::vector<float> all(std::size_t count, float value) { return std::vector<float>(count, value); }

}  // namespace perseus::testing
