#include "control/messages.h"

#include <algorithm>

#include "control/wire.h"

namespace perseus {

namespace {

// A year. Clocks cannot hold every number that a message can.
constexpr std::int64_t kLongestWaitMs = 365LL * 24 * 3600 * 1000;

[[noreturn]] void nonsense(const std::string& what) {
  throw Error(ErrorKind::transport, "a " + what +
                                        " from another rank makes no sense; do all ranks run the same "
                                        "version of perseus_like?");
}

void write(Writer& to, const std::vector<Claim>& claims) {
  to.number(claims.size());
  for (const auto& claim : claims) {
    to.request(claim.request);
    to.numbers(claim.ranks);
  }
}

std::vector<Claim> read_claims(Reader& from) {
  std::vector<Claim> claims;
  for (auto left = from.number(); left > 0; --left) {
    auto request = from.request();
    claims.push_back({std::move(request), from.numbers()});
  }
  return claims;
}

// Consecutive decisions to run cached requests travel as one list of ids.
constexpr std::uint64_t kCachedRun = 0;

void write(Writer& to, const Decision& decision) {
  to.number(static_cast<std::uint64_t>(decision.kind) + 1);
  to.number(decision.id);
  to.number(static_cast<std::uint64_t>(decision.error));
  to.signed_number(decision.rank);
  to.text(decision.text);
  to.request(decision.request);
  to.number(decision.values.size());
  for (const auto value : decision.values) to.signed_number(value);
}

Decision read_decision(Reader& from, std::uint64_t kind) {
  Decision decision;
  if (kind > static_cast<std::uint64_t>(Decision::Kind::tune)) nonsense("plan");
  decision.kind = static_cast<Decision::Kind>(kind);
  const auto id = from.number();
  const auto error = from.number();
  if (id > Decision::kNoId || error > static_cast<std::uint64_t>(ErrorKind::shut_down)) nonsense("plan");
  decision.id = static_cast<std::uint32_t>(id);
  decision.error = static_cast<ErrorKind>(error);
  decision.rank = from.small_number();
  decision.text = from.text();
  decision.request = from.request();
  for (auto left = from.number(); left > 0; --left) decision.values.push_back(from.signed_number());
  return decision;
}

}  // namespace

std::string encode(const Report& report) {
  Writer to;
  to.number(report.urgent ? 1 : 0);
  to.runs(report.cached);
  to.number(report.claims.size());
  for (const auto& claims : report.claims) write(to, claims);
  to.numbers(report.joined);
  to.numbers(report.left);
  to.number(report.stalls.size());
  for (const auto& stall : report.stalls) {
    to.text(stall.name);
    to.text(stall.label);
    to.numbers(stall.present);
    to.signed_number(stall.waited_ms);
  }
  return to.take();
}

Report decode_report(std::string_view bytes) {
  Reader from(bytes);
  Report report;
  report.urgent = from.number() != 0;
  report.cached = from.runs();
  for (auto left = from.number(); left > 0; --left) report.claims.push_back(read_claims(from));
  report.joined = from.numbers();
  report.left = from.numbers();
  for (auto left = from.number(); left > 0; --left) {
    StallNote note;
    note.name = from.text();
    note.label = from.text();
    note.present = from.numbers();
    note.waited_ms = std::clamp<std::int64_t>(from.signed_number(), 0, kLongestWaitMs);
    report.stalls.push_back(std::move(note));
  }
  if (!from.at_end()) nonsense("report");
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
