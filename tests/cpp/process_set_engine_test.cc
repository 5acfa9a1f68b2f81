// Tests engines of ranks that are threads: any driver and any order of submissions give correct results and an orderly
// end.
#include "engine/process_set_engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "engine_cases.h"
#include "engine_rank.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;
using testing::Case;
using testing::EngineRank;
using testing::hosts_of;
using testing::kGrace;
using testing::Ranks;
using testing::run;
using testing::run_engines;
using testing::run_world;
using testing::Started;
using testing::World;

class Engines : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(OneHost, Engines,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(1, 2, 3, 4)));
// Messages that arrive without notifying the doorbell.
INSTANTIATE_TEST_SUITE_P(Mpi, Engines, ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(SeveralHosts, Engines,
                         ::testing::Combine(::testing::Values(Ranks::hosts), ::testing::Values(3, 4)));
// A rank that does not go on calling MPI keeps what others wait for.
INSTANTIATE_TEST_SUITE_P(FullSockets, Engines,
                         ::testing::Combine(::testing::Values(Ranks::hosts_with_outboxes), ::testing::Values(4)));

TEST_P(Engines, ACallerDrives) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
    for (int i = 0; i < 200; ++i) rank.finish(*rank.allreduce(i % 3 == 0 ? "same" : "x" + std::to_string(i), i % 7));
    rank.finish(*rank.allreduce("large", 300'000));
    rank.finish(*rank.allreduce("average", 100, world.size));
  });
}

TEST_P(Engines, TheCommunicationThreadDrives) {
  run_engines(GetParam(), [](EngineRank& rank, World&) {
    for (int i = 0; i < 100; ++i) rank.finish(*rank.allreduce("x" + std::to_string(i % 10), i), true);
  });
}

using Starter = std::function<std::unique_ptr<Started>(EngineRank&)>;

std::vector<Starter> mixed_verbs(int size) {
  std::vector<Starter> verbs;
  for (int i = 0; i < 6; ++i) {
    const auto n = std::to_string(i);
    verbs.push_back([n, i](EngineRank& r) { return r.allreduce("small" + n, i * 5); });
    verbs.push_back([n, i, size](EngineRank& r) { return r.broadcast("b" + n, 3 + i, i % size); });
    verbs.push_back([n, i](EngineRank& r) { return r.allgather("g" + n, i % 2); });
    verbs.push_back([n](EngineRank& r) { return r.alltoall("a" + n); });
    verbs.push_back([n, i](EngineRank& r) { return r.reduce_scatter("s" + n, i * 3); });
    verbs.push_back([n](EngineRank& r) { return r.barrier("w" + n); });
  }
  verbs.push_back([](EngineRank& r) { return r.allreduce("large", 200'000); });
  return verbs;
}

TEST_P(Engines, EachRankSubmitsInItsOwnOrder) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
    std::mt19937 random(static_cast<unsigned>(world.rank));
    auto verbs = mixed_verbs(world.size);
    for (int round = 0; round < 6; ++round) {
      std::shuffle(verbs.begin(), verbs.end(), random);
      std::vector<std::unique_ptr<Started>> started;
      for (const auto& verb : verbs) started.push_back(verb(rank));
      std::shuffle(started.begin(), started.end(), random);
      for (auto& one : started) rank.finish(*one, random() % 2 == 0);
    }
  });
}

TEST_P(Engines, SeveralThreadsOfARank) {
  run_engines(GetParam(), [](EngineRank& rank, World&) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&rank, t] {
        for (int i = 0; i < 60; ++i) {
          auto first = rank.allreduce("t" + std::to_string(t) + "." + std::to_string(i % 4), 10 + t, 1, i % 3 != 0);
          auto second = rank.allgather("g" + std::to_string(t), t);
          rank.finish(*second, i % 5 == 0);
          rank.finish(*first);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

// Fusion threshold, batching delay and chunk size change between collectives, with tensors large enough for chunks.
TEST(TunedEngines, DoTheSame) {
  auto transport = testing::small_options();
  transport.tunable = true;
  run_world(
      Ranks::threads, 3,
      [](World& world) {
        EngineOptions options;
        options.autotune = AutotuneOptions{.warmup_samples = 1, .steps_per_sample = 1};
        EngineRank rank(world, options);
        for (int step = 0; step < 80; ++step) {
          std::vector<std::unique_ptr<Started>> started;
          for (int i = 0; i < 4; ++i)
            started.push_back(rank.allreduce("x" + std::to_string(i), 50'000 * (i + step % 2)));
          started.push_back(rank.allgather("g", 20'000));
          started.push_back(rank.alltoall("a"));
          started.push_back(rank.reduce_scatter("s", 40'000));
          for (auto& one : started) rank.finish(*one, step % 2 == 0);
        }
        rank.engine().close(kGrace);
      },
      transport);
}

// The timeline is started and stopped while collectives are in progress.
TEST(TracedEngines, DoTheSame) {
  run_world(Ranks::threads, 3, [](World& world) {
    const auto file = std::filesystem::temp_directory_path() /
                      ("perseus_engine_" + std::to_string(getpid()) + "." + std::to_string(world.rank) + ".json");
    Timeline timeline;
    EngineOptions options;
    options.timeline = &timeline;
    EngineRank rank(world, options);
    const auto verbs = mixed_verbs(world.size);
    for (int round = 0; round < 8; ++round) {
      if (round % 4 == 1) timeline.start(file, true, {});
      std::vector<std::unique_ptr<Started>> started;
      for (const auto& verb : verbs) started.push_back(verb(rank));
      if (round % 4 == 3) timeline.stop();
      for (auto& one : started) rank.finish(*one, round % 2 == 0);
    }
    rank.engine().close(kGrace);
    std::filesystem::remove(file);
  });
}

// Ranks use overlapping process sets in different orders, because each engine has its own thread.
TEST(OverlappingEngines, DoNotBlockOneAnother) {
  run_world(Ranks::threads, 3, [](World& world) {
    EngineRank world_engine(world), first(world, {0, 1}), second(world, {1, 2}), third(world, {0, 2});
    std::vector<EngineRank*> ranks;
    for (auto* one : {&world_engine, &first, &second, &third}) {
      if (one->is_member()) ranks.push_back(one);
    }
    std::mt19937 random(static_cast<unsigned>(world.rank));
    for (int i = 0; i < 30; ++i) {
      std::shuffle(ranks.begin(), ranks.end(), random);
      std::vector<std::unique_ptr<Started>> started;
      for (auto* rank : ranks) started.push_back(rank->allreduce("x", 40));
      for (std::size_t j = 0; j < ranks.size(); ++j) ranks[j]->finish(*started[j], random() % 2 == 0);
    }
    for (auto* one : {&third, &second, &first, &world_engine}) {
      if (one->is_member()) one->engine().close(kGrace);
    }
  });
}

TEST(ProcessSetEngine, ADisagreementFailsOnAllRanksAndTheyContinue) {
  std::vector<std::string> texts(3);
  run_engines(3, [&](EngineRank& rank, World& world) {
    for (int i = 0; i < 4; ++i) {
      const auto odd = rank.allreduce("x", world.rank == 2 ? 4 : 3);
      const auto status = rank.outcome(*odd);
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.kind(), ErrorKind::disagreement);
      texts[static_cast<std::size_t>(world.rank)] = status.text();
      rank.finish(*rank.allreduce("x", 3));
    }
  });
  for (const auto& text : texts) {
    EXPECT_EQ(text,
              "allreduce 'x': ranks 0, 1 have int64[3], rank 2 has int64[4]; dtype and shape must be the same on all "
              "ranks");
  }
}

TEST(ProcessSetEngine, AContradictedRequestFailsOnAllRanksAndTheyContinue) {
  run_engines(3, [&](EngineRank& rank, World& world) {
    for (int i = 0; i < 4; ++i) {
      std::unique_ptr<Started> held;
      if (world.rank == i % 3) {
        held = rank.allreduce("x", 3);
        rank.engine().contradict("x", "it twice");
      }
      rank.finish(*rank.barrier("both"));
      if (!held) held = rank.allreduce("x", 3);
      const auto status = rank.outcome(*held);
      EXPECT_EQ(status.kind(), ErrorKind::disagreement);
      const auto text = "rank " + std::to_string(i % 3) + " calls it twice";
      EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
      rank.engine().contradict("x", "it after its end");
      rank.finish(*rank.allreduce("x", 3));
    }
  });
}

TEST(ProcessSetEngine, ANameInFlightIsRejectedUntilItIsDone) {
  run_engines(2, [](EngineRank& rank, World& world) {
    std::unique_ptr<Started> held;
    if (world.rank == 0) {
      held = rank.allreduce("x", 3);
      EXPECT_THROW(
          {
            try {
              rank.allreduce("x", 3);
            } catch (const Error& error) {
              EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
              EXPECT_NE(std::string(error.what()).find("allreduce 'x': this name is already in flight"),
                        std::string::npos);
              throw;
            }
          },
          Error);
    }
    rank.finish(*rank.barrier("both"));
    if (world.rank == 1) held = rank.allreduce("x", 3);
    rank.finish(*held);
    rank.finish(*rank.allreduce("x", 3));
  });
}

TEST(ProcessSetEngine, AFailedProcessSetDoesNotEndTheEngine) {
  run_engines(2, [](EngineRank& rank, World&) {
    const auto good = rank.about_sets("process set", {0, 1});
    rank.finish(*good);
    EXPECT_EQ(good->completion->number, 7);
    const auto bad = rank.about_sets("process set", {});
    EXPECT_EQ(rank.outcome(*bad).kind(), ErrorKind::invalid_argument);
    rank.finish(*rank.allreduce("x", 3));
  });
}

TEST(ProcessSetEngine, AWaitingRankLearnsWhichRankClosed) {
  for (int leaver = 0; leaver < 3; ++leaver) {
    run_engines(3, [leaver](EngineRank& rank, World& world) {
      rank.finish(*rank.allreduce("x", 3));
      if (world.rank == leaver) {
        const auto own = rank.allreduce("own", 3);
        world.exchange("");
        rank.engine().close(kGrace);
        const auto status = rank.outcome(*own);
        EXPECT_EQ(status.kind(), ErrorKind::shut_down) << status.text();
        EXPECT_THROW(rank.allreduce("later", 3), Error);
      } else {
        const auto waiting = rank.allreduce("waiting", 3);
        world.exchange("");
        const auto status = world.rank == 1 ? rank.outcome(*waiting) : rank.outcome_by_engine(*waiting);
        EXPECT_EQ(status.kind(), ErrorKind::peer_lost);
        EXPECT_EQ(status.text(),
                  "allreduce 'waiting': rank " + std::to_string(leaver) + " has left the job (it shut down or ended)");
        EXPECT_THROW(rank.allreduce("later", 3), Error);
      }
    });
  }
}

// A rank that leaves at once is noticed even if its communication thread does not run meanwhile.
TEST_P(Engines, DepartureWithoutWaitingIsNoticed) {
  if (std::get<Ranks>(GetParam()) == Ranks::hosts_with_outboxes) {
    GTEST_SKIP() << "the departure may be in the outbox until the closed engine is destroyed";
  }
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    for (int round = 0; round < 20; ++round) {
      const int leaver = round % world.size;
      EngineRank rank(world, {}, hosts);
      rank.finish(*rank.barrier("all are here"));
      const auto waiting = world.rank == leaver ? nullptr : rank.allreduce("waiting", 3);
      world.exchange("");
      if (world.rank == leaver) {
        rank.engine().close(0ms);
      } else {
        EXPECT_EQ(rank.outcome(*waiting).text(),
                  "allreduce 'waiting': rank " + std::to_string(leaver) + " has left the job (it shut down or ended)");
      }
      world.exchange("");
      rank.engine().close(kGrace);
    }
  });
}

TEST(ProcessSetEngine, ThreadsThatWaitWhileTheirOwnEngineClosesAreReleased) {
  run_engines(2, [](EngineRank& rank, World& world) {
    std::atomic<int> released = 0;
    std::vector<std::unique_ptr<Started>> started;
    std::vector<std::thread> waiters;
    // No other rank submits these requests.
    for (int t = 0; t < 3; ++t) {
      started.push_back(rank.allreduce("r" + std::to_string(world.rank) + "." + std::to_string(t), 3));
      waiters.emplace_back([&, at = started.back().get()] {
        EXPECT_FALSE(rank.outcome(*at).ok());
        ++released;
      });
    }
    rank.finish(*rank.barrier("all started"));
    rank.engine().close(kGrace);
    for (auto& waiter : waiters) waiter.join();
    EXPECT_EQ(released, 3);
  });
}

TEST(ProcessSetEngine, ALostPeerEndsEveryWait) {
  run_engines(3, [](EngineRank& rank, World& world) {
    rank.finish(*rank.allreduce("x", 3));
    const auto waiting = world.rank == 2 ? nullptr : rank.allreduce("waiting", 3);
    world.exchange("");
    if (world.rank == 2) {
      world.liveness.report_lost(2, "(process 1) has died");
    } else {
      // Does what Session does: it lets all engines check for lost ranks.
      world.liveness.on_lost([&rank] { rank.engine().wake(); });
      const auto status = world.rank == 0 ? rank.outcome(*waiting) : rank.outcome_by_engine(*waiting);
      EXPECT_EQ(status.kind(), ErrorKind::peer_lost);
      EXPECT_EQ(status.text(), "allreduce 'waiting': rank 2 (process 1) has died");
    }
    world.exchange("");
    world.liveness.remove_wakes();
    world.exchange("");
  });
}

TEST_P(Engines, JoinedRanksContributeZeros) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
    // Rank r has r + 1 batches.
    for (int batch = 0; batch < world.size; ++batch) {
      if (batch > world.rank) break;
      const auto started = rank.allreduce("batch", 4);
      ASSERT_TRUE(rank.outcome(*started).ok());
      std::int64_t sum = 0;
      for (int r = batch; r < world.size; ++r) sum += r + 1;
      EXPECT_EQ(started->out[3], 3 * sum) << "batch " << batch;
    }
    const auto joined = rank.engine().join();
    EXPECT_TRUE(world.size == 1 || world.rank == world.size - 1 || !joined->done() || joined->status().ok());
    rank.engine().wait(*joined);
    ASSERT_TRUE(joined->status().ok());
    EXPECT_EQ(joined->number, world.size - 1);
    rank.finish(*rank.allgather("after", 1));
  });
}

TEST(ProcessSetEngine, AStallBecomesAnErrorOnAllRanks) {
  EngineOptions options;
  options.negotiator.stalls.warning = 0ms;
  options.negotiator.stalls.shutdown = 50ms;
  const auto body = [](EngineRank& rank, World& world) {
    // A rank that submits after the other rank's wait has ended everything gets the same error.
    const auto outcome = [&]() -> Status {
      try {
        const auto waiting = world.rank == 1 ? rank.allreduce("alone", 3) : rank.barrier("another");
        return rank.outcome_by_engine(*waiting);
      } catch (const Error& error) {
        return Status::from(error);
      }
    };
    const auto status = outcome();
    EXPECT_EQ(status.kind(), ErrorKind::timed_out);
    EXPECT_NE(status.text().find("not by rank"), std::string::npos) << status.text();
  };
  run_engines(2, body, options);
}

TEST(ProcessSetEngine, ClosingTwiceAndWithoutWork) {
  run_engines(2, [](EngineRank& rank, World&) { rank.engine().close(kGrace); });
}

}  // namespace
}  // namespace perseus
