// Budgets of messages, connections and bytes for jobs of many ranks. Processor time is not asserted: `make scale`
// prints it.
#include <gtest/gtest.h>

#include <bit>

#include "bootstrap/host_rendezvous.h"
#include "link.h"
#include "situations.h"

namespace perseus::scale {
namespace {

constexpr int kFanOut = 16, kTensors = 60;
constexpr int kWatchTree = static_cast<int>(kWatchFanOut);
// Each host has two connections of the ring, and hosts other than the first one have one to their parent.
constexpr int kWatchedByRoot = kWatchTree + 1, kWatched = kWatchTree + 3;

int hosts_of(int ranks) { return ranks / kRanksPerHost; }
// Returns log₂, rounded up.
int log2_of(int count) { return static_cast<int>(std::bit_width(static_cast<unsigned>(count - 1))); }

// Situations in one thread.
class Scale : public ::testing::TestWithParam<int> {};
// Situations in which each rank or each host has threads.
class ScaleInThreads : public ::testing::TestWithParam<int> {};

void expect_few_neighbours(const Situation& found) {
  EXPECT_LE(found.connections, kFanOut) << found.name;
  EXPECT_LE(found.other_connections, kFanOut + 1) << found.name;
}

TEST_P(Scale, AStepCostsTheSameNumberOfMessages) {
  const auto found = steps(GetParam(), kTensors);
  for (const auto& step : found) {
    EXPECT_LE(step.root.messages(), 2 * kFanOut) << step.name;
    EXPECT_LE(step.other_messages, 2 * (kFanOut + 1)) << step.name;
    expect_few_neighbours(step);
  }
  EXPECT_LE(found.front().root.bytes(), 1000U);
  // Each name comes from 16 children and goes to them.
  EXPECT_LE(found.back().root.bytes(), std::size_t{kTensors} * 2 * kFanOut * 100);
}

// The root names the missing rank of each tensor. Ranks that wait are in messages as runs, not one by one.
TEST_P(Scale, AStragglerCostsNoListsOfAllOthers) {
  const auto found = one_straggler(GetParam(), kTensors);
  EXPECT_EQ(found.front().root.messages(), 0) << "nothing is sent before the time of the warning";
  EXPECT_LE(found.back().root.messages(), 3 * kFanOut);
  EXPECT_LE(found.back().root.bytes_received, std::size_t{kTensors} * 150);
  expect_few_neighbours(found.back());
}

// Each rank asks, and all but rank 0 are told to wait. To each further question, a rank answers what it knows at once,
// and then what comes from each level of the tree below it.
TEST_P(Scale, AStoppedRankCostsAFewMessagesForEachNeighbour) {
  const auto found = one_stopped_rank(GetParam());
  int levels = 0;
  for (int place = hosts_of(GetParam()) - 1; place > 0; place = (place - 1) / kWatchTree) ++levels;
  EXPECT_LE(found.root.messages(), (8 + levels) * kWatchTree);
  EXPECT_LE(found.other_messages, (8 + levels) * (kWatchTree + 1));
  EXPECT_LE(found.connections, kWatchTree);
  EXPECT_LE(found.other_connections, kWatchTree + 1);
}

// Beside the tree's messages, a channel that is used closes by one to each neighbour, and each of two channels by a
// barrier.
TEST_P(Scale, ALeavingRankSendsMessagesToFewRanks) {
  const int ranks = GetParam();
  const auto found = shutdown(ranks);
  const int rounds = log2_of(ranks) + log2_of(hosts_of(ranks));
  EXPECT_LE(found.root.messages(), 4 * kFanOut + 2 * rounds);
  EXPECT_LE(found.other_messages, 4 * (kFanOut + 1) + 2 * rounds);
  EXPECT_LE(found.connections, kFanOut + rounds);
  EXPECT_LE(found.other_connections, kFanOut + 1 + rounds);
  EXPECT_LE(found.root.bytes(), 5000U);
}

TEST_P(Scale, ProcessSetsNeedNoFurtherConnections) {
  constexpr int kSets = 10;
  const auto found = process_sets(GetParam(), kSets);
  EXPECT_LE(found.root.messages(), kSets * 2 * kFanOut);
  EXPECT_LE(found.other_messages, kSets * 2 * (kFanOut + 1));
  EXPECT_LE(found.root.bytes(), std::size_t{kSets} * 2 * kFanOut * 100);
  expect_few_neighbours(found);
}

// Each allgather of the start consists of two gathers in log₂(n) rounds. Ranks exchange in pairs.
TEST_P(ScaleInThreads, TheStartConnectsEachRankWithFewOthers) {
  constexpr int kAllgathers = 12;
  const int ranks = GetParam();
  const auto found = start(ranks);
  const int rounds = log2_of(ranks);
  EXPECT_LE(found.root.messages(), kAllgathers * 2 * 2 * rounds);
  EXPECT_LE(found.other_messages, kAllgathers * 2 * 2 * rounds);
  EXPECT_LE(found.connections, rounds);
  EXPECT_LE(found.other_connections, rounds);
  EXPECT_LE(found.root.bytes(), static_cast<std::size_t>(ranks) * kAllgathers * 2 * 100);
}

TEST_P(ScaleInThreads, TheWatchConnectsEachHostWithFewOthers) {
  const auto found = start_of_watch(GetParam());
  EXPECT_LE(found.connections, kWatchedByRoot);
  EXPECT_LE(found.other_connections, kWatched);
}

// Each host tells its neighbours, which tell it back.
TEST_P(ScaleInThreads, TheLossOfARankIsAMessageForEachNeighbour) {
  const auto found = one_dead_rank(GetParam());
  EXPECT_LE(found.root.messages(), 2 * kWatchedByRoot);
  EXPECT_LE(found.other_messages, 2 * kWatched);
  EXPECT_LE(found.connections, kWatchedByRoot);
  EXPECT_LE(found.other_connections, kWatched);
}

INSTANTIATE_TEST_SUITE_P(, Scale, ::testing::Values(64, 256, 1024));
INSTANTIATE_TEST_SUITE_P(, ScaleInThreads, ::testing::Values(64, 256));

// With two hosts, a step is one report and one plan.
TEST(PredictedStep, AddsTheTimesOfMessagesInTheirOrder) {
  const LinkTimes link{.delay = Microseconds(100), .send = Microseconds(1), .receive = Microseconds(2)};
  EXPECT_DOUBLE_EQ(predicted_step(2, link).count(), 2 * 103.0);
  // Rank 0 receives two reports one after the other, and sends two plans.
  EXPECT_DOUBLE_EQ(predicted_step(3, link).count(), 2 * 103.0 + 2 + 1);
  EXPECT_LT(predicted_step(256, link), Microseconds(1000));
}

}  // namespace
}  // namespace perseus::scale
