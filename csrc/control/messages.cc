#include "control/messages.h"

#include <algorithm>

#include "control/serialization.h"

namespace perseus {

namespace {

// A year. A clock's duration cannot hold every number that a message can.
constexpr std::int64_t kLongestWaitMs = 365LL * 24 * 3600 * 1000;

// Bits of a report's first number.
constexpr std::uint64_t kUrgent = 1, kHasBlocked = 2, kHasContradictions = 4;

[[noreturn]] void malformed(const std::string& what) {
  throw Error(ErrorKind::transport,
              "negotiation: a " + what +
                  " from another rank is malformed; check that all ranks run the same version of perseus_like");
}

void write(Writer& to, const std::vector<Submission>& submissions) {
  to.number(submissions.size());
  for (const auto& submission : submissions) {
    to.request(submission.request);
    to.ranks(submission.ranks);
  }
}

std::vector<Submission> read_submissions(Reader& from) {
  std::vector<Submission> submissions;
  for (auto left = from.number(); left > 0; --left) {
    auto request = from.request();
    submissions.push_back({std::move(request), from.ranks()});
  }
  return submissions;
}

// Consecutive decisions to run cached requests are encoded as one list of ids.
constexpr std::uint64_t kCachedRun = 0;

void write(Writer& to, const Decision& decision) {
  to.number(static_cast<std::uint64_t>(decision.kind) + 1);
  to.number(decision.id);
  to.number(static_cast<std::uint64_t>(decision.error));
  to.signed_number(decision.rank);
  to.text(decision.text);
  to.request(decision.request ? *decision.request : Request{});
  to.number(decision.values.size());
  for (const auto value : decision.values) to.signed_number(value);
}

Decision read_decision(Reader& from, std::uint64_t kind) {
  Decision decision;
  if (kind > static_cast<std::uint64_t>(Decision::Kind::suspect)) malformed("plan");
  decision.kind = static_cast<Decision::Kind>(kind);
  const auto id = from.number();
  const auto error = from.number();
  if (id > Decision::kNoId || error > static_cast<std::uint64_t>(ErrorKind::shut_down)) malformed("plan");
  decision.id = static_cast<std::uint32_t>(id);
  decision.error = static_cast<ErrorKind>(error);
  decision.rank = from.small_number();
  decision.text = from.text();
  decision.request = std::make_shared<const Request>(from.request());
  for (auto left = from.number(); left > 0; --left) decision.values.push_back(from.signed_number());
  return decision;
}

}  // namespace

const std::string& Decision::name() const {
  static const std::string kNone;
  return request ? request->name : kNone;
}

std::string encode(const Report& report) {
  Writer to;
  // The first byte is small: point-to-point messages and missing-rank queries begin with other bytes.
  to.number((report.urgent ? kUrgent : 0) | (report.blocked.empty() ? 0 : kHasBlocked) |
            (report.contradictions.empty() ? 0 : kHasContradictions));
  to.number(report.changes);
  to.runs(report.cached);
  to.number(report.submissions.size());
  for (const auto& submissions : report.submissions) write(to, submissions);
  to.numbers(report.joined);
  to.numbers(report.left);
  to.number(report.stalls.size());
  for (const auto& stall : report.stalls) {
    to.text(stall.name);
    to.text(stall.label);
    to.ranks(stall.present);
    to.signed_number(stall.waited_ms);
  }
  if (!report.blocked.empty()) {
    to.number(report.blocked.size());
    for (const auto& name : report.blocked) to.text(name);
  }
  if (!report.contradictions.empty()) write(to, report.contradictions);
  return to.take();
}

Report decode_report(std::string_view bytes) {
  Reader from(bytes);
  Report report;
  const auto flags = from.number();
  if (flags > (kUrgent | kHasBlocked | kHasContradictions)) malformed("report");
  report.urgent = (flags & kUrgent) != 0;
  report.changes = from.number();
  report.cached = from.runs();
  for (auto left = from.number(); left > 0; --left) report.submissions.push_back(read_submissions(from));
  report.joined = from.numbers();
  report.left = from.numbers();
  for (auto left = from.number(); left > 0; --left) {
    StallReport stall;
    stall.name = from.text();
    stall.label = from.text();
    stall.present = from.ranks();
    stall.waited_ms = std::clamp<std::int64_t>(from.signed_number(), 0, kLongestWaitMs);
    report.stalls.push_back(std::move(stall));
  }
  if ((flags & kHasBlocked) != 0) {
    for (auto left = from.number(); left > 0; --left) report.blocked.push_back(from.text());
  }
  if ((flags & kHasContradictions) != 0) report.contradictions = read_submissions(from);
  if (!from.at_end()) malformed("report");
  return report;
}

std::string encode(const Plan& plan) {
  Writer to;
  std::vector<std::uint32_t> ids;
  const auto flush = [&] {
    if (ids.empty()) return;
    to.number(kCachedRun);
    to.runs(ids);
    ids.clear();
  };
  for (const auto& decision : plan.decisions) {
    if (decision.kind == Decision::Kind::run && decision.cached) {
      ids.push_back(decision.id);
    } else {
      flush();
      write(to, decision);
    }
  }
  flush();
  return to.take();
}

Plan decode_plan(std::string_view bytes) {
  Reader from(bytes);
  Plan plan;
  while (!from.at_end()) {
    const auto tag = from.number();
    if (tag != kCachedRun) {
      plan.decisions.push_back(read_decision(from, tag - 1));
      continue;
    }
    for (const auto id : from.runs()) {
      Decision decision;
      decision.id = id;
      decision.cached = true;
      plan.decisions.push_back(std::move(decision));
    }
  }
  return plan;
}

}  // namespace perseus
