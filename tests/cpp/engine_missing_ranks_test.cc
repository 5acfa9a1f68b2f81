// Tests that a rank learns which ranks are missing, and that unexpected sizes of an alltoall are reported.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine_cases.h"
#include "engine_rank.h"

namespace perseus {
namespace {

using testing::Case;
using testing::EngineRank;
using testing::kGrace;
using testing::Ranks;
using testing::run_engines;
using testing::World;

class MissingRanksTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(OneHost, MissingRanksTest,
                         ::testing::Combine(::testing::Values(Ranks::threads), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(Mpi, MissingRanksTest,
                         ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(SeveralHosts, MissingRanksTest,
                         ::testing::Combine(::testing::Values(Ranks::hosts), ::testing::Values(3, 4)));

TEST_P(MissingRanksTest, MissingRanksAreNamed) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
    auto& engine = rank.engine();
    const int late = world.size - 1;
    std::unique_ptr<testing::Started> waiting;
    if (world.rank != late) {
      waiting = rank.allreduce("x", 10);
      rank.finish(*rank.barrier("the others wait"));
      EXPECT_EQ(engine.missing("x", ProcessSetEngine::Clock::now() + kGrace), std::vector<int>{late});
    } else {
      rank.finish(*rank.barrier("the others wait"));
    }
    rank.finish(*rank.barrier("all have asked"));
    if (world.rank == late) waiting = rank.allreduce("x", 10);
    rank.finish(*waiting);
  });
}

// Rank 0 sends one row more to rank 1 than rank 1 expects.
TEST_P(MissingRanksTest, UnexpectedRowsFailOnAllRanks) {
  run_engines(GetParam(), [](EngineRank& rank, World& world) {
    auto& engine = rank.engine();
    const auto ranks = static_cast<std::size_t>(world.size);
    std::vector<std::int64_t> data(ranks + 1);
    const auto start = [&](std::int64_t more) {
      auto work = std::make_shared<WorkItem>();
      work->request.verb = Verb::alltoall;
      work->request.name = "#0";
      work->request.call = "exchange";
      work->request.checked = true;
      work->request.members.push_back({DType::int64, {static_cast<std::int64_t>(ranks) + 1}});
      work->inputs.push_back(data.data());
      work->splits.assign(ranks, 1);
      if (world.rank == 0) work->splits[1] += more;
      work->expected.assign(ranks, 1);
      auto completion = completion_of(work);
      engine.submit(std::move(work));
      engine.wait(*completion);
      return completion;
    };
    const auto failed = start(1);
    EXPECT_EQ(failed->status().kind(), ErrorKind::disagreement);
    EXPECT_EQ(failed->status().text(),
              "exchange '#0': rank 0 sends 2 elements to rank 1, which expects 1; nothing was communicated");
    EXPECT_TRUE(start(0)->status().ok());
  });
}

}  // namespace
}  // namespace perseus
