// Budgets of messages and bytes for jobs of many ranks. Processor time is not asserted: `make scale` prints it.
#include <gtest/gtest.h>

#include "negotiating_job.h"

namespace perseus::scale {
namespace {

using std::chrono::milliseconds;

constexpr int kRanksPerHost = 8, kFanOut = 16;
constexpr std::size_t kTensors = 60;

class Scale : public ::testing::TestWithParam<int> {
 protected:
  // The first `ranks` ranks submit all tensors. Returns the number of decisions.
  std::size_t step(NegotiatingJob& job, int ranks) {
    job.reset_costs();
    for (int rank = 0; rank < ranks; ++rank) job.submit(rank, tensors_);
    return job.settle();
  }
  // Makes the steps after which all tensors have ids.
  void learn(NegotiatingJob& job) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(job, job.size()), kTensors);
  }

  std::vector<Request> tensors_ = layers(static_cast<int>(kTensors));
};

TEST_P(Scale, AStepCostsTheSameNumberOfMessages) {
  NegotiatingJob job(GetParam(), kRanksPerHost, {});
  EXPECT_EQ(step(job, job.size()), kTensors);
  EXPECT_LE(job.root().messages(), 2 * kFanOut);
  // Each name comes from 16 children and goes to them.
  EXPECT_LE(job.root().bytes(), kTensors * 2 * kFanOut * 100);
  learn(job);
  EXPECT_LE(job.root().messages(), 2 * kFanOut);
  EXPECT_LE(job.busiest().messages(), 2 * (kFanOut + 1));
  EXPECT_LE(job.root().bytes(), 1000U);
}

// The root names the missing rank of each tensor. Ranks that wait travel as runs, not one by one.
TEST_P(Scale, AMissingRankCostsNoListsOfAllOthers) {
  NegotiatingJob job(GetParam(), kRanksPerHost, {.stall_warning = milliseconds(60000)});
  learn(job);
  EXPECT_EQ(step(job, job.size() - 1), 0U);
  job.reset_costs();
  for (int i = 0; i < 20; ++i) {
    job.now += milliseconds(100);
    static_cast<void>(job.check_stalls());
    EXPECT_EQ(job.settle(), 0U);
  }
  EXPECT_EQ(job.root().messages(), 0) << "nothing is sent before the time of the warning";
  job.now += milliseconds(60000);
  std::size_t warnings = 0;
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(job.check_stalls());
    warnings += job.settle();
  }
  EXPECT_EQ(warnings, kTensors);
  EXPECT_LE(job.root().messages(), 3 * kFanOut);
  EXPECT_LE(job.root().bytes_received, kTensors * 150);
}

INSTANTIATE_TEST_SUITE_P(, Scale, ::testing::Values(64, 256, 1024));

}  // namespace
}  // namespace perseus::scale
