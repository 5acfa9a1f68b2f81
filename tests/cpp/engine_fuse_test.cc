// Tests which requests are fused: small reductions and broadcasts with equal arguments, up to the threshold.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "control_requests.h"
#include "engine/execute/fuse.h"

namespace perseus {
namespace {

using testing::allreduce;
using testing::request;

constexpr std::int64_t kThreshold = 1000;

std::vector<Batch> fused(const std::vector<Request>& requests, std::int64_t threshold = kThreshold) {
  std::vector<const Request*> pointers;
  for (const auto& one : requests) pointers.push_back(&one);
  return fuse(pointers, threshold);
}

Request broadcast(int root, DType dtype = DType::float32) {
  auto made = request(Verb::broadcast, "b", {{dtype, {4}}});
  made.root = root;
  return made;
}

TEST(Fuse, SimilarRequestsShareABatchInOrder) {
  EXPECT_EQ(fused({allreduce("a"), allreduce("b"), allreduce("c")}), (std::vector<Batch>{{0, 1, 2}}));
  EXPECT_TRUE(fused({}).empty());
}

TEST(Fuse, BatchesAreLimitedByTheThreshold) {
  const std::vector<Request> requests(5, allreduce("x", {100}));  // 400 bytes each
  EXPECT_EQ(fused(requests), (std::vector<Batch>{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(fused(requests, 400), (std::vector<Batch>{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(fused(requests, 0), (std::vector<Batch>{{0}, {1}, {2}, {3}, {4}}));
}

TEST(Fuse, SmallTensorsFillTheRestOfABatch) {
  EXPECT_EQ(fused({allreduce("a", {200}), allreduce("b", {100}), allreduce("c", {50})}),
            (std::vector<Batch>{{0, 2}, {1}}));
}

TEST(Fuse, DifferentRequestsUseDifferentBatches) {
  auto op = allreduce("x"), scale = allreduce("x"), wire = allreduce("x"), device = allreduce("x");
  op.op = ReduceOp::max;
  scale.scale.divisor = 2;
  wire.wire_dtype = static_cast<std::int8_t>(DType::float16);
  device.on_host = false;
  const auto dtype = allreduce("x", {3}, DType::float64);
  EXPECT_EQ(fused({allreduce("a"), op, scale, wire, device, dtype, allreduce("b"), op}),
            (std::vector<Batch>{{0, 6}, {1, 7}, {2}, {3}, {4}, {5}}));
}

TEST(Fuse, BroadcastsOfOneRootShareABatchForAnyDtype) {
  EXPECT_EQ(fused({broadcast(0), broadcast(1), broadcast(0, DType::int8), allreduce("a", {4})}),
            (std::vector<Batch>{{0, 2}, {1}, {3}}));
}

TEST(Fuse, GroupsAndOtherVerbsAreNotFused) {
  const auto group = request(Verb::allreduce, "g", {{DType::float32, {1}}, {DType::float32, {1}}});
  const auto gather = request(Verb::allgather, "h", {{DType::float32, {1}}});
  const auto barrier = request(Verb::barrier, "i", {});
  EXPECT_EQ(fused({allreduce("a"), group, gather, barrier, gather, allreduce("b")}),
            (std::vector<Batch>{{0, 5}, {1}, {2}, {3}, {4}}));
}

TEST(Fuse, LargeTensorsAreNotFusedUnderALargeThreshold) {
  EXPECT_EQ(fused({allreduce("a"), allreduce("large", {1 << 18}), allreduce("b")}, std::int64_t{1} << 40),
            (std::vector<Batch>{{0, 2}, {1}}));
}

TEST(Fuse, EmptyTensorsCostNothing) {
  EXPECT_EQ(fused({allreduce("a", {0}), allreduce("b", {250}), allreduce("c", {0, 7})}).size(), 2U);
}

TEST(Fuse, EveryRequestOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 30; ++i) {
      requests.push_back(random() % 4 == 0 ? broadcast(static_cast<int>(random() % 2))
                                           : allreduce("x", {static_cast<std::int64_t>(random() % 300)}));
      if (random() % 4 == 0) requests.back().op = ReduceOp::min;
    }
    std::vector<int> seen(requests.size(), 0);
    for (const auto& batch : fused(requests)) {
      std::int64_t bytes = 0;
      for (const auto i : batch) {
        ++seen[i];
        bytes += requests[i].bytes();
        EXPECT_EQ(requests[i].op, requests[batch.front()].op);
      }
      EXPECT_TRUE(batch.size() == 1 || bytes <= kThreshold);
    }
    EXPECT_EQ(seen, std::vector<int>(requests.size(), 1));
  }
}

}  // namespace
}  // namespace perseus
