// Tests which requests agree, and the error text for requests that do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "control/agreement.h"
#include "control_requests.h"

namespace perseus {
namespace {

using testing::allreduce;
using testing::request;

const std::vector<int> kWorld = {0, 1, 2, 3, 4, 5};

std::string text(std::vector<Submission> submissions, const std::vector<int>& world_ranks = kWorld) {
  const auto result = describe_disagreement(submissions, world_ranks);
  std::reverse(submissions.begin(), submissions.end());
  EXPECT_EQ(describe_disagreement(submissions, world_ranks), result)
      << "the text must not depend on the order of arrival";
  return result;
}

template <typename Change>
Request changed(Request made, const Change& change) {
  change(made);
  return made;
}

TEST(Agreement, RanksAreListedAsRanges) {
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({1, 0}), "ranks 0, 1");
  EXPECT_EQ(describe_ranks({5, 0, 3, 2, 4}), "ranks 0, 2-5");
  EXPECT_EQ(describe_ranks({9, 7, 1, 2, 3}), "ranks 1-3, 7, 9");
}

TEST(Agreement, TheCallersNameForTheCall) {
  const auto called = [](const char* call) { return changed(allreduce("#7"), [call](Request& r) { r.call = call; }); };
  EXPECT_FALSE(called("all_reduce").agrees_with(called("reduce to rank 0")));
  EXPECT_EQ(text({{called("all_reduce"), {0, 2}}, {called("reduce to rank 1"), {1}}}),
            "all_reduce '#7': ranks 0, 2 call all_reduce, rank 1 calls reduce to rank 1; all ranks must pass the same");
}

TEST(Agreement, DtypeAndShape) {
  EXPECT_EQ(text({{allreduce("fc.weight", {64, 3}), {0}}, {allreduce("fc.weight", {64, 3}, DType::float16), {5}}}),
            "allreduce 'fc.weight': rank 0 has float32[64,3], rank 5 has float16[64,3]; dtype and shape must be the "
            "same on all ranks");
  EXPECT_EQ(text({{allreduce("w", {}), {0, 1, 2}}, {allreduce("w", {1}), {3}}}),
            "allreduce 'w': ranks 0-2 have float32[], rank 3 has float32[1]; dtype and shape must be the same on all "
            "ranks");
}

TEST(Agreement, ThreeKindsOfRanks) {
  EXPECT_EQ(text({{allreduce("w", {1}), {0}}, {allreduce("w", {2}), {1, 3}}, {allreduce("w", {3}), {2}}}),
            "allreduce 'w': rank 0 has float32[1], ranks 1, 3 have float32[2], rank 2 has float32[3]; dtype and shape "
            "must be the same on all ranks");
}

TEST(Agreement, FirstDimensionsOfAnAllgatherMayDiffer) {
  const auto gather = [](Shape shape) { return request(Verb::allgather, "g", {{DType::int64, std::move(shape)}}); };
  EXPECT_TRUE(gather({2, 5}).agrees_with(gather({0, 5})));
  EXPECT_FALSE(gather({2, 5}).agrees_with(gather({2, 5, 1})));
  EXPECT_EQ(text({{gather({2, 5}), {0}}, {gather({3, 4}), {1}}}),
            "allgather 'g': rank 0 has int64[2,5], rank 1 has int64[3,4]; dtype and all but the first dimension must "
            "be the same on all ranks");
}

TEST(Agreement, NamesTheMemberThatDiffers) {
  const auto group = [](Shape last) {
    return request(Verb::allreduce, "g", {{DType::float32, {1}}, {DType::float32, std::move(last)}});
  };
  EXPECT_EQ(text({{group({2}), {0}}, {group({3}), {1}}}),
            "allreduce 'g' (member 1 of the group): rank 0 has float32[2], rank 1 has float32[3]; dtype and shape must "
            "be the same on all ranks");
  EXPECT_EQ(text({{group({2}), {0}}, {allreduce("g", {1}), {1}}}),
            "allreduce 'g': rank 0 has a group of 2 tensors, rank 1 has a group of 1 tensors; all ranks must pass the "
            "same");
}

TEST(Agreement, MembersWithNames) {
  const auto group = [](Shape last, std::string names) {
    auto made = request(Verb::allreduce, "g", {{DType::float32, {1}}, {DType::float32, std::move(last)}});
    made.member_names = std::move(names);
    return made;
  };
  EXPECT_EQ(text({{group({2}, "one\nanother"), {0}}, {group({3}, "one\nanother"), {1}}}),
            "allreduce 'g', another: rank 0 has float32[2], rank 1 has float32[3]; dtype and shape must be the same on "
            "all ranks");
  EXPECT_EQ(
      text({{group({2}, "one\nanother"), {0}}, {group({3}, "one\nb"), {1}}}),
      "allreduce 'g' (member 1 of the group): rank 0 has another, float32[2], rank 1 has b, float32[3]; all ranks "
      "must have the same");
  EXPECT_EQ(text({{group({2}, "one\nanother"), {0, 1}}, {group({0}, "one\nanother\tno gradient"), {2}}}),
            "allreduce 'g', another: ranks 0, 1 have float32[2], rank 2 has no gradient; all ranks must have the same");
  auto longer = group({2}, "one\nanother\nlast");
  longer.members.push_back({DType::int64, {}});
  EXPECT_EQ(
      text({{group({2}, "one\nanother"), {0}}, {longer, {1}}}),
      "allreduce 'g' (member 2 of the group): rank 0 has no more of them, rank 1 has last, int64[]; all ranks must "
      "have the same");
  EXPECT_EQ(
      text({{longer, {0}}, {group({2}, "one\nanother"), {1}}}),
      "allreduce 'g' (member 2 of the group): rank 0 has last, int64[], rank 1 has no more of them; all ranks must "
      "have the same");
  EXPECT_EQ(text({{group({2}, "one"), {0}}, {group({3}, "one"), {1}}}),
            "allreduce 'g' (member 1 of the group): rank 0 has float32[2], rank 1 has float32[3]; dtype and shape must "
            "be the same on all ranks");
}

TEST(Agreement, OperationAndScale) {
  const auto plain = allreduce("x");
  const auto average = changed(plain, [](Request& r) { r.scale.divisor = 6; });
  const auto smallest = changed(plain, [](Request& r) { r.op = ReduceOp::min; });
  EXPECT_EQ(text({{average, {0}}, {plain, {1}}}),
            "allreduce 'x': rank 0 asks for op average, rank 1 asks for op sum; all ranks must pass the same");
  EXPECT_EQ(text({{plain, {0, 1}}, {smallest, {2, 3}}}),
            "allreduce 'x': ranks 0, 1 ask for op sum, ranks 2, 3 ask for op min; all ranks must pass the same");
  const auto half = changed(plain, [](Request& r) { r.scale.pre = 0.5; });
  EXPECT_EQ(text({{plain, {0}}, {half, {1}}}),
            "allreduce 'x': rank 0 asks for prescale 1, rank 1 asks for prescale 0.5; all ranks must pass the same");
  const auto after = changed(plain, [](Request& r) { r.scale.post = -2; });
  EXPECT_EQ(text({{plain, {0}}, {after, {1}}}),
            "allreduce 'x': rank 0 asks for postscale 1, rank 1 asks for postscale -2; all ranks must pass the same");
}

TEST(Agreement, FactorsThatDifferLittleAreDistinguished) {
  const auto scaled = [](double factor) { return changed(allreduce("x"), [&](Request& r) { r.scale.pre = factor; }); };
  EXPECT_EQ(text({{scaled(1.0 / 65536), {0}}, {scaled(1.0 / 131072), {1}}}),
            "allreduce 'x': rank 0 asks for prescale 1.52587890625e-05, rank 1 asks for prescale 7.62939453125e-06; "
            "all ranks must pass the same");
}

TEST(Agreement, RootDeviceCompressionAndVerb) {
  const auto from = [](int root) {
    return changed(request(Verb::broadcast, "b", {{DType::float32, {2}}}), [&](Request& r) { r.root = root; });
  };
  EXPECT_EQ(text({{from(0), {0}}, {from(1), {1}}}),
            "broadcast 'b': rank 0 asks for root 0, rank 1 asks for root 1; all ranks must pass the same");
  const auto plain = allreduce("x");
  EXPECT_EQ(text({{plain, {0}}, {changed(plain, [](Request& r) { r.on_host = false; }), {1}}}),
            "allreduce 'x': rank 0 has it on the host, rank 1 has it on an accelerator; all ranks must pass the same");
  const auto half = changed(plain, [](Request& r) { r.wire_dtype = static_cast<std::int8_t>(DType::float16); });
  EXPECT_EQ(text({{plain, {0}}, {half, {1}}}),
            "allreduce 'x': rank 0 asks for compression none, rank 1 asks for compression float16; all ranks must pass "
            "the same");
  EXPECT_EQ(text({{plain, {0}}, {request(Verb::barrier, "x", {}), {1}}}),
            "allreduce 'x': rank 0 calls allreduce, rank 1 calls barrier; all ranks must pass the same");
}

TEST(Agreement, RanksAndRootsOfAProcessSetAreWorldRanks) {
  const auto from = [](int root) {
    return changed(request(Verb::broadcast, "b", {{DType::float32, {2}}}), [&](Request& r) { r.root = root; });
  };
  EXPECT_EQ(text({{from(0), {0}}, {from(2), {1, 2}}}, {2, 5, 7}),
            "broadcast 'b': rank 2 asks for root 2, ranks 5, 7 ask for root 7; all ranks must pass the same");
}

TEST(Agreement, AVerbInTheNameIsNotRepeated) {
  EXPECT_EQ(allreduce("allreduce.fc.weight").label(), "allreduce 'fc.weight'");
  EXPECT_EQ(allreduce("grouped_allreduce.bucket").label(), "grouped_allreduce 'bucket'");
  EXPECT_EQ(allreduce("allreduced").label(), "allreduce 'allreduced'");
}

TEST(Agreement, ALabelWithTheFirstMember) {
  auto made = allreduce("x");
  EXPECT_EQ(made.label_with_members(), "allreduce 'x'");
  made.member_names = "one\tnone";
  EXPECT_EQ(made.label_with_members(), "allreduce 'x' (one)");
  made.members.resize(3, made.members.front());
  made.member_names = "one\ntwo\nthree";
  EXPECT_EQ(made.label_with_members(), "allreduce 'x' (one and 2 more)");
}

}  // namespace
}  // namespace perseus
