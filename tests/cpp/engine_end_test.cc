// Tests that an engine ends in time, and that joins and removals count what was submitted before them.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine_cases.h"
#include "engine_rank.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;
using testing::EngineRank;
using testing::kGrace;
using testing::Ranks;
using testing::run_engines;
using testing::run_world;
using testing::Started;
using testing::World;

// Rank 0 has no engine that could answer, as if it were stopped.
TEST(EngineEnd, AThreadThatWaitsDoesNotHoldItUp) {
  std::promise<void> closed;
  run_world(Ranks::threads, 2, [&](World& world) {
    if (world.rank == 0) {
      const auto link = world.connect_all();
      closed.get_future().wait();
      return;
    }
    EngineRank rank(world);
    const auto started = rank.allreduce("x", 10);
    std::thread waiting([&] { EXPECT_EQ(rank.outcome(*started).kind(), ErrorKind::shut_down); });
    EXPECT_TRUE(rank.engine().inspect().ok());
    rank.engine().close(10ms);
    waiting.join();
    closed.set_value();
  });
}

TEST(EngineEnd, WorkThatAllRanksSubmittedIsFinishedFirst) {
  for (int round = 0; round < 30; ++round) {
    run_world(Ranks::threads, 2, [&](World& world) {
      EngineRank rank(world);
      std::vector<std::unique_ptr<Started>> all;
      for (int i = 0; i < 3; ++i) all.push_back(rank.allreduce("x" + std::to_string(i), 1000));
      rank.engine().finish_pending(ProcessSetEngine::Clock::now() + kGrace);
      rank.engine().close(kGrace);
      for (const auto& each : all) rank.finish(*each);
    });
  }
}

TEST(Join, WorkSubmittedBeforeCountsAndLaterWorkIsAnError) {
  std::barrier together(3);
  run_engines(3, [&](EngineRank& rank, World& world) {
    for (int round = 0; round < 50; ++round) {
      const auto before = rank.allreduce("before", 10);
      if (world.rank != 0) together.arrive_and_wait();  // rank 0 has joined
      const auto joined = rank.engine().join();
      if (world.rank == 0) {
        try {
          rank.allreduce("after", 10);
          ADD_FAILURE() << "the submission was accepted";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
          EXPECT_NE(std::string(error.what()).find("allreduce 'after': rank 0 has called join()"), std::string::npos);
        }
        together.arrive_and_wait();
      }
      rank.finish(*before);
      rank.engine().wait(*joined);
      EXPECT_TRUE(joined->status().ok());
      rank.finish(*rank.allreduce("afterwards", 10));
    }
  });
}

// The submissions wake nobody, so that nothing would happen without the caller's cycles.
TEST(Poll, RunsTheEngine) {
  run_engines(2, [&](EngineRank& rank, World&) {
    for (int round = 0; round < 20; ++round) {
      const auto started = rank.allreduce("x", 10, 1, false);
      while (!started->completion->done()) rank.engine().poll();
      rank.finish(*started);
    }
  });
}

TEST(TimeIn, LimitsOfYearsMeanNever) {
  using Clock = ProcessSetEngine::Clock;
  using Seconds = std::chrono::duration<double>;
  EXPECT_EQ(time_in(Seconds(1e14)), Clock::time_point::max());
  EXPECT_EQ(time_in(Seconds(std::numeric_limits<double>::infinity())), Clock::time_point::max());
  EXPECT_EQ(time_in(std::chrono::nanoseconds::max()), Clock::time_point::max());
  const auto soon = time_in(1s);
  EXPECT_LE(soon, Clock::now() + 1s);
}

}  // namespace
}  // namespace perseus
