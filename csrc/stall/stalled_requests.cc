#include "stall/stalled_requests.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace perseus {

namespace {

using std::chrono::milliseconds;

// The time for which names wait before they are compared, so that ordinary steps cause no messages.
constexpr milliseconds kSettling{300};

std::string verb_of(const std::string& name, const std::string& plain) {
  return name.substr(0, name.size() - plain.size() - 1);
}

std::shared_ptr<const Request> request_named(const std::string& name) {
  Request request;
  request.name = name;
  return std::make_shared<const Request>(std::move(request));
}

milliseconds time_between(StalledRequests::Clock::time_point since, StalledRequests::Clock::time_point now) {
  return std::chrono::duration_cast<milliseconds>(now - since);
}

}  // namespace

std::string in_seconds(milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

StalledRequests::StalledRequests(const Tree& tree, const StallTimes& times, OpenRequests& open, Report& report,
                                 std::vector<Decision>& decisions)
    : tree_(tree), times_(times), open_(open), report_(report), decisions_(decisions), below_{tree.rank} {
  all_.add_run({0, tree.size()});
  for (const auto& ranks : tree.ranks_below) below_.add(ranks);
}

// Returns the ranks that are not present and have not joined.
RankSet StalledRequests::missing(const RankSet& present) const {
  auto ranks = all_;
  ranks.remove(present);
  ranks.remove(open_.joined());
  return ranks;
}

std::string StalledRequests::describe(const RankSet& ranks) const {
  return describe_ranks(world_ranks_of(ranks, tree_.world_ranks));
}

// Returns the ranks that have submitted a request, by this node's knowledge and by reports.
RankSet StalledRequests::known_submitters(const std::string& name) const {
  auto ranks = open_.submitters_of(name);
  if (const auto found = stalls_.find(name); found != stalls_.end()) ranks.add(found->second.report.present);
  return ranks;
}

// Every node reports what waits below it, and one warning combines the reports. If there are other nodes, the warning
// therefore waits for the next check.
void StalledRequests::check(Clock::time_point now) {
  open_.visit_open([&](const Request& request, Clock::time_point since, Clock::time_point& warned) {
    report_if_late(request, since, warned, now);
  });
  check_verbs(now);
  const bool alone = std::ranges::all_of(tree_.ranks_below, [](const auto& ranks) { return ranks.size() == 1; });
  for (auto& [name, stall] : stalls_) {
    if (!stall.due) continue;
    if (std::exchange(stall.fresh, false) && !alone) continue;
    stall.due = false;
    stall.warned = now;
    warn(stall, now);
  }
}

void StalledRequests::report_if_late(const Request& request, Clock::time_point since, Clock::time_point& warned,
                                     Clock::time_point now) {
  const auto warning = warned == since ? times_.first_warning : times_.warning;
  const auto shutdown = times_.shutdown;
  const bool late = times_.warning.count() > 0 && now - warned >= warning;
  const bool over = shutdown.count() > 0 && now - since >= shutdown;
  if (!late && !over) return;
  warned = now;
  receive(
      {request.name, request.label_with_members(), open_.submitters_of(request.name), time_between(since, now).count()},
      now);
}

void StalledRequests::receive(StallReport report, Clock::time_point now) {
  if (!tree_.is_root()) {
    report_.stalls.push_back(std::move(report));
    return;
  }
  const bool early = milliseconds(report.waited_ms) < times_.first_warning;  // a report of check_verbs()
  auto [found, is_new] = stalls_.try_emplace(report.name);
  auto& stall = found->second;
  const auto period = times_.warning;
  if (is_new) {
    stall.since = now - milliseconds(report.waited_ms);
    stall.warned = stall.since - period;
  }
  report.present.add(known_submitters(report.name));
  stall.report = std::move(report);
  // A late report of a period for which a warning was already given waits for the next period.
  const bool over = times_.shutdown.count() > 0 && now - stall.since >= times_.shutdown;
  if (!over && (early || now - stall.warned < period / 2)) return;
  stall.fresh = stall.fresh || !stall.due;
  stall.due = true;
}

void StalledRequests::remove(const std::string& name) {
  if (!stalls_.empty()) stalls_.erase(name);
  if (!reported_verbs_.empty()) reported_verbs_.erase(name);
  std::erase_if(report_.stalls, [&](const StallReport& report) { return report.name == name; });
}

void StalledRequests::clear() {
  stalls_.clear();
  suspicions_.clear();
}

void StalledRequests::warn(const Stall& stall, Clock::time_point now) {
  const auto waited = time_between(stall.since, now);
  const bool over = times_.shutdown.count() > 0 && waited >= times_.shutdown;
  if (!over && times_.warning.count() == 0) return;
  // Requests that stall together mostly wait for the same ranks.
  if (auto others = missing(stall.report.present); stall.report.present != described_ || others != described_missing_) {
    described_ = stall.report.present;
    described_missing_ = std::move(others);
    description_ = " s: submitted by " + describe(described_) + ", not by " + describe(described_missing_);
  }
  Decision decision;
  decision.request = request_named(stall.report.name);
  decision.text = stall.report.label + (over ? " timed out after a timeout of " : " has waited ") +
                  in_seconds(over ? times_.shutdown : waited) + description_ +
                  ". All ranks must call the same collectives; check whether the missing ranks are still busy or have "
                  "taken another branch.";
  decision.kind = over ? Decision::Kind::close : Decision::Kind::warn;
  decision.error = ErrorKind::timed_out;
  decisions_.push_back(std::move(decision));
}

void StalledRequests::describe_longest_wait(Plan& plan, Clock::time_point now) {
  auto longest = now - std::chrono::seconds(5);  // shorter waits are ordinary
  const Request* waiting = nullptr;
  open_.visit_open([&](const Request& request, Clock::time_point since, Clock::time_point&) {
    if (since >= longest) return;
    longest = since;
    waiting = &request;
  });
  if (waiting == nullptr) return;
  const auto ranks = known_submitters(waiting->name), others = missing(ranks);
  if (ranks.empty() || others.empty()) return;
  Decision decision;
  decision.kind = Decision::Kind::warn;
  decision.text = describe(ranks) + (ranks.size() == 1 ? " was" : " were") + " waiting for " + describe(others) +
                  " in " + waiting->label_with_members() + " for " +
                  std::to_string(time_between(longest, now).count() / 1000) + " s";
  plan.decisions.push_back(std::move(decision));
}

// Returns the names that wait at least since then and differ from another one in the verb only, by the name that the
// caller gave.
std::map<std::string, StalledRequests::Names> StalledRequests::names_of_several_verbs(Clock::time_point since) {
  std::unordered_map<std::string_view, std::vector<std::string_view>> found;
  const auto add = [&](std::string_view name) {
    const auto plain = name_without_verb(name);
    if (plain == name) return;
    auto& names = found[plain];
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  open_.visit_open([&](const Request& request, Clock::time_point begin, Clock::time_point&) {
    if (begin <= since) add(request.name);
  });
  for (const auto& [name, stall] : stalls_) add(name);
  std::map<std::string, Names> several;
  for (const auto& [plain, names] : found) {
    if (names.size() < 2) continue;
    auto& ranks = several[std::string(plain)];
    for (const auto name : names) ranks[std::string(name)] = known_submitters(std::string(name));
  }
  return several;
}

// Other nodes than the root report the names that not all ranks below them have submitted.
void StalledRequests::check_verbs(Clock::time_point now) {
  for (const auto& [plain, names] : names_of_several_verbs(now - kSettling)) {
    if (tree_.is_root()) {
      check_names(plain, names, now);
      continue;
    }
    for (const auto& [name, present] : names) {
      if (std::exchange(reported_verbs_[name], present.size()) == present.size()) continue;
      report_.stalls.push_back({.name = name, .label = verb_of(name, plain) + " '" + plain + "'", .present = present});
    }
  }
  for (auto& [plain, suspicion] : suspicions_) report_if_blocked(plain, suspicion);  // a rank may have joined
}

// Suspects a name at the root once every rank has submitted one of its verbs. Ranks that are never seen to wait, as
// those of a framework that waits itself, get the error after the time of the stall check.
void StalledRequests::check_names(const std::string& plain, const Names& names, Clock::time_point now) {
  RankSet ranks;
  std::size_t submissions = 0;
  for (const auto& [name, present] : names) {
    ranks.add(present);
    submissions += present.size();
  }
  // If a rank calls several of the verbs, the other ranks may follow.
  if (submissions > ranks.size() || !missing(ranks).empty()) return;
  const auto found = suspicions_.find(plain);
  if (found == suspicions_.end()) {
    Decision decision;
    decision.kind = Decision::Kind::suspect;
    decision.request = request_named(plain);
    decisions_.push_back(std::move(decision));
    return;
  }
  auto& since = found->second.since;
  if (since == Clock::time_point{}) since = now;
  if (times_.warning.count() > 0 && now - since >= times_.warning) fail(plain, names);
}

void StalledRequests::apply(const Decision& decision, std::uint64_t changes) {
  if (decision.kind == Decision::Kind::suspect) {
    suspicions_[decision.name()] = {.changes = changes};
  } else if (!suspicions_.empty()) {
    suspicions_.erase(std::string(name_without_verb(decision.name())));
  }
}

void StalledRequests::record_waiter(const std::string& name) {
  const auto found = suspicions_.find(std::string(name_without_verb(name)));
  if (found == suspicions_.end()) return;
  found->second.blocked.add(tree_.rank);
  report_if_blocked(found->first, found->second);
}

void StalledRequests::receive_blocked(const Report& report, const RankSet& ranks) {
  for (const auto& plain : report.blocked) {
    const auto found = suspicions_.find(plain);
    if (found == suspicions_.end() || report.changes < found->second.changes) continue;
    found->second.blocked.add(ranks);
    report_if_blocked(plain, found->second);
  }
}

void StalledRequests::report_if_blocked(const std::string& plain, Suspicion& suspicion) {
  auto others = below_;
  others.remove(suspicion.blocked);
  others.remove(open_.joined());
  if (others.empty() && !std::exchange(suspicion.reported, true)) report_.blocked.push_back(plain);
}

void StalledRequests::fail_blocked(const std::vector<std::string>& blocked, const Plan& plan) {
  if (blocked.empty()) return;
  const auto several = names_of_several_verbs(Clock::time_point::max());
  for (const auto& plain : blocked) {
    const bool decided = std::ranges::any_of(
        plan.decisions, [&](const Decision& decision) { return name_without_verb(decision.name()) == plain; });
    const auto names = several.find(plain);
    if (!decided && suspicions_.contains(plain) && names != several.end()) fail(plain, names->second);
  }
}

void StalledRequests::fail(const std::string& plain, const Names& names) {
  std::vector<std::pair<RankSet, std::string>> callers;  // ranks, and the verb that they call
  for (const auto& [name, present] : names) {
    if (present.empty()) continue;  // its ranks have joined meanwhile
    callers.emplace_back(world_ranks_of(present, tree_.world_ranks), verb_of(name, plain));
  }
  std::ranges::sort(callers, {}, [](const auto& caller) { return caller.first.lowest(); });
  std::string text;
  for (const auto& [ranks, verb] : callers) {
    text += (text.empty() ? verb + " '" + plain + "': " : ", ") + describe_ranks(ranks) +
            (ranks.size() > 1 ? " call " : " calls ") + verb;
  }
  text += "; all ranks must pass the same";
  for (const auto& [name, present] : names) {
    Decision decision;
    decision.kind = Decision::Kind::fail;
    decision.request = request_named(name);
    decision.text = text;
    decisions_.push_back(std::move(decision));
  }
}

}  // namespace perseus
