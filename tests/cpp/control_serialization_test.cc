// Tests that control messages are read as they were written, and that malformed ones are rejected.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "control/messages.h"
#include "control/serialization.h"
#include "control_requests.h"
#include "engine/point_to_point.h"
#include "stall/missing_rank_query.h"

namespace perseus {
namespace {

using testing::allreduce;
using testing::request;
using testing::same;
using Ids = std::vector<std::uint32_t>;

Request every_field() {
  auto made =
      request(Verb::reduce_scatter, std::string("a\0b \xff", 5), {{DType::bfloat16, {2, 0, 7}}, {DType::boolean, {}}});
  made.op = ReduceOp::bxor;
  made.scale = {0.1, -3e300, 4097};
  made.wire_dtype = static_cast<std::int8_t>(DType::float16);
  made.root = 129;
  made.member_names = "one\nanother\tnone";
  made.on_host = false;
  made.ranks = {0, 5, std::int64_t{1} << 40};
  return made;
}

Report full_report() {
  Report report;
  report.urgent = true;
  report.cached = {7, 8, 9, 3, 4, 4000000};
  report.submissions = {{{every_field(), {0, 2, 3}}, {allreduce("b"), {1}}}, {{allreduce("c", {}), {4, 5}}}};
  report.joined = {6};
  report.left = {1, 0};
  report.blocked = {"x", "y"};
  report.contradictions = {{request(Verb::barrier, "x", {}), {1}}};
  report.stalls = {{"slow", "allreduce 'slow'", {2, 3}, 61'500}};
  report.changes = 300;
  return report;
}

Decision fail_decision() {
  Decision decision;
  decision.kind = Decision::Kind::fail;
  decision.request = std::make_shared<const Request>(allreduce("x"));
  decision.error = ErrorKind::disagreement;
  decision.text = "ranks differ";
  decision.rank = -1;
  return decision;
}

Decision run_decision(std::uint32_t id) {
  Decision decision;
  decision.id = id;
  decision.request = std::make_shared<const Request>(every_field());
  return decision;
}

Decision cached_decision(std::uint32_t id) {
  Decision decision;
  decision.id = id;
  decision.cached = true;
  return decision;
}

Plan full_plan() {
  Decision joined;
  joined.kind = Decision::Kind::joined;
  joined.rank = 3;
  Decision close;
  close.kind = Decision::Kind::close;
  close.error = ErrorKind::timed_out;
  close.text = "too late";
  return {{cached_decision(5), cached_decision(6), cached_decision(1), run_decision(7), run_decision(Decision::kNoId),
           fail_decision(), cached_decision(0), joined, close}};
}

bool same_decision(const Decision& a, const Decision& b) {
  const Request none;
  const auto& first = a.request ? *a.request : none;
  const auto& second = b.request ? *b.request : none;
  return a.kind == b.kind && a.id == b.id && a.cached == b.cached && same(first, second) && a.error == b.error &&
         a.text == b.text && a.rank == b.rank;
}

// Returns true if the bytes are rejected with Error(transport), the only failure that malformed bytes may cause.
template <typename Decode>
bool refused(const Decode& decode, std::string_view bytes) {
  try {
    decode(bytes);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::transport);
    EXPECT_NE(std::string(error.what()).find("version"), std::string::npos) << error.what();
    return true;
  }
}

TEST(Serialization, NumbersOfAllSizes) {
  const std::vector<std::uint64_t> numbers = {0, 1, 127, 128, 16383, 16384, UINT32_MAX, UINT64_MAX};
  const std::vector<std::int64_t> signed_numbers = {0, -1, 1, 63, -64, 64, INT32_MIN, INT64_MAX, INT64_MIN};
  const std::vector<double> reals = {0.0, -0.0, 0.1, std::numeric_limits<double>::denorm_min(),
                                     std::numeric_limits<double>::infinity()};
  Writer to;
  for (const auto value : numbers) to.number(value);
  for (const auto value : signed_numbers) to.signed_number(value);
  for (const auto value : reals) to.real(value);
  const auto bytes = to.take();
  Reader from(bytes);
  for (const auto value : numbers) EXPECT_EQ(from.number(), value);
  for (const auto value : signed_numbers) EXPECT_EQ(from.signed_number(), value);
  for (const auto value : reals) EXPECT_EQ(from.real(), value);
  EXPECT_TRUE(from.at_end());
}

TEST(Serialization, SmallNumbersTakeOneByte) {
  Writer to;
  to.number(127);
  to.signed_number(-64);
  EXPECT_EQ(to.take().size(), 2U);
}

TEST(Serialization, MalformedNumbers) {
  const std::string endless(11, '\x80');
  EXPECT_TRUE(refused([](std::string_view bytes) { Reader(bytes).number(); }, endless));
  Writer to;
  to.signed_number(std::int64_t{INT32_MAX} + 1);
  const auto bytes = to.take();
  EXPECT_TRUE(refused([](std::string_view given) { Reader(given).small_number(); }, bytes));
}

TEST(Serialization, RunsOfIds) {
  const std::vector<Ids> lists = {
      {}, {0}, {UINT32_MAX}, {3, 4, 5}, {5, 4, 3}, {9, 10, 2, 3, 4, 9}, {7, 7, 7}, {UINT32_MAX - 1, 0}};
  for (const auto& ids : lists) {
    Writer to;
    to.runs(ids);
    const auto bytes = to.take();
    Reader from(bytes);
    EXPECT_EQ(from.runs(), ids);
    EXPECT_TRUE(from.at_end());
  }
}

TEST(Serialization, AscendingIdsCostAFewBytes) {
  Ids ids;
  for (std::uint32_t i = 100; i < 10'100; ++i) ids.push_back(i);
  Writer to;
  to.runs(ids);
  EXPECT_LE(to.take().size(), 8U);
}

TEST(Serialization, MalformedRuns) {
  const auto runs = [](const std::vector<std::pair<std::int64_t, std::uint64_t>>& pairs) {
    Writer to;
    to.number(pairs.size());
    for (const auto& [step, count] : pairs) {
      to.signed_number(step);
      to.number(count);
    }
    return to.take();
  };
  const auto read = [](std::string_view bytes) { Reader(bytes).runs(); };
  EXPECT_TRUE(refused(read, runs({{-1, 1}}))) << "a negative id";
  EXPECT_TRUE(refused(read, runs({{5, 0}}))) << "an empty run";
  EXPECT_TRUE(refused(read, runs({{0, UINT64_MAX}}))) << "more than memory holds";
  EXPECT_TRUE(refused(read, runs({{INT64_MAX, 1}, {INT64_MAX, 1}}))) << "overflow";
  EXPECT_TRUE(refused(read, runs({{UINT32_MAX, 2}}))) << "beyond the last id";
  EXPECT_TRUE(refused(read, runs({{0, 3'000'000}, {1, 3'000'000}}))) << "too many ids in all runs together";
}

TEST(Serialization, Requests) {
  for (const auto& made : {every_field(), allreduce(""), request(Verb::barrier, "b", {})}) {
    Writer to;
    to.request(made);
    const auto bytes = to.take();
    Reader from(bytes);
    EXPECT_TRUE(same(from.request(), made));
    EXPECT_TRUE(from.at_end());
  }
}

TEST(Serialization, RequestsWithUnknownEnumerators) {
  auto wire = allreduce("x");
  wire.wire_dtype = kDTypeCount;
  auto dtype = allreduce("x");
  dtype.members.front().dtype = static_cast<DType>(kDTypeCount);
  auto op = allreduce("x");
  op.op = static_cast<ReduceOp>(static_cast<int>(ReduceOp::bxor) + 1);
  auto verb = allreduce("x");
  verb.verb = static_cast<Verb>(static_cast<int>(Verb::remove_process_set) + 1);
  for (const auto& made : {wire, dtype, op, verb}) {
    Writer to;
    to.request(made);
    const auto bytes = to.take();
    EXPECT_TRUE(refused([](std::string_view given) { Reader(given).request(); }, bytes));
  }
}

TEST(Messages, ReportsRoundTrip) {
  const auto report = full_report();
  const auto read = decode_report(encode(report));
  EXPECT_EQ(read.urgent, report.urgent);
  EXPECT_EQ(read.cached, report.cached);
  EXPECT_EQ(read.joined, report.joined);
  EXPECT_EQ(read.left, report.left);
  EXPECT_EQ(read.stalls, report.stalls);
  EXPECT_EQ(read.blocked, report.blocked);
  ASSERT_EQ(read.contradictions.size(), 1U);
  EXPECT_EQ(read.contradictions.front().ranks, report.contradictions.front().ranks);
  EXPECT_TRUE(read.contradictions.front().request.agrees_with(report.contradictions.front().request));
  EXPECT_EQ(read.changes, report.changes);
  ASSERT_EQ(read.submissions.size(), report.submissions.size());
  for (std::size_t i = 0; i < read.submissions.size(); ++i) {
    ASSERT_EQ(read.submissions[i].size(), report.submissions[i].size());
    for (std::size_t j = 0; j < read.submissions[i].size(); ++j) {
      EXPECT_TRUE(same(read.submissions[i][j].request, report.submissions[i][j].request));
      EXPECT_EQ(read.submissions[i][j].ranks, report.submissions[i][j].ranks);
    }
  }
  EXPECT_TRUE(decode_report(encode(Report{})).empty());
}

TEST(Messages, PlansRoundTrip) {
  const auto plan = full_plan();
  const auto read = decode_plan(encode(plan));
  ASSERT_EQ(read.decisions.size(), plan.decisions.size());
  for (std::size_t i = 0; i < plan.decisions.size(); ++i) {
    EXPECT_TRUE(same_decision(read.decisions[i], plan.decisions[i])) << "decision " << i;
  }
}

// Both other kinds of message on a control channel are recognized by their first byte.
TEST(Messages, NoReportBeginsAsAnotherKindOfMessage) {
  Report report;
  for (report.changes = 0; report.changes < 70'000; ++report.changes) {
    for (const bool urgent : {false, true}) {
      report.urgent = urgent;
      const auto bytes = encode(report);
      ASSERT_FALSE(PointToPoint::is_point_to_point(bytes)) << report.changes;
      ASSERT_FALSE(MissingRankQuery::is_of(bytes)) << report.changes;
      ASSERT_EQ(decode_report(bytes).changes, report.changes);
    }
  }
}

TEST(Messages, ATruncatedReportIsRejected) {
  const auto bytes = encode(full_report());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(refused(decode_report, std::string_view(bytes).substr(0, length))) << length << " bytes";
  }
  EXPECT_TRUE(refused(decode_report, bytes + '\0')) << "one byte too many";
}

// A plan is a list without a count, so it may end after any decision and nowhere else.
TEST(Messages, ATruncatedPlanIsRejectedOrShorter) {
  const auto plan = full_plan();
  const auto bytes = encode(plan);
  int shorter = 0;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto prefix = std::string_view(bytes).substr(0, length);
    if (refused(decode_plan, prefix)) continue;
    const auto read = decode_plan(prefix);
    ++shorter;
    ASSERT_LT(read.decisions.size(), plan.decisions.size());
    for (std::size_t i = 0; i < read.decisions.size(); ++i) {
      EXPECT_TRUE(same_decision(read.decisions[i], plan.decisions[i]));
    }
  }
  EXPECT_EQ(shorter, 7) << "a plan may end after each of its 7 entries; consecutive ids are one entry";
}

TEST(Messages, CorruptedBytesAreRejectedOrReadSafely) {
  std::mt19937 random(20260731);
  const auto report = encode(full_report());
  const auto plan = encode(full_plan());
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = i % 2 == 0 ? report : plan;
    for (int changes = 1 + i % 3; changes > 0; --changes) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (i % 2 == 0) {
      refused(decode_report, bytes);
    } else {
      refused(decode_plan, bytes);
    }
  }
}

}  // namespace
}  // namespace perseus
