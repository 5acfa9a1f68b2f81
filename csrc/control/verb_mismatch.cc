// The Negotiator's check for ranks that call different verbs with one name.
//
// Adapters put the verb in front of a name, so that one rank may have an allreduce and a broadcast called "x" in flight
// at once. Ranks that call different verbs therefore submit different names, and each would wait for the others. Ranks
// may also submit both verbs, each in an order of its own, and the second much later than the first. So the root fails
// a name only if all ranks are blocked in it:
//
// - The root sees that each rank has submitted exactly one of the verbs. It suspects the name: a decision tells all
//   ranks.
// - A rank is blocked if one of its threads waits for a request of the name: the thread submits nothing until then. A
//   node of the tree reports the name once all ranks below it are blocked, as it reports a request.
// - A decision about a request of the name ends the suspicion. If all ranks are blocked first, the root fails the name.
#include <algorithm>
#include <utility>

#include "control/negotiator.h"

namespace perseus {

namespace {

// The time for which names wait before they are compared, so that ordinary steps cause no messages.
constexpr std::chrono::milliseconds kSettling{300};

std::string verb_of(const std::string& name, const std::string& plain) {
  return name.substr(0, name.size() - plain.size() - 1);
}

const std::string& name_of(const Decision& decision) {
  return decision.agreed ? decision.agreed->name : decision.request.name;
}

}  // namespace

// Returns the names that have waited this long and differ from another one in the verb only, grouped by the name that
// the caller gave.
Negotiator::Calls Negotiator::open_calls(Clock::time_point now, std::chrono::milliseconds waited) const {
  std::unordered_map<std::string_view, std::vector<std::string_view>> names;
  const auto add = [&](std::string_view name) {
    const auto plain = name_without_verb(name);
    if (plain == name) return;
    auto& found = names[plain];
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  };
  for (const auto& [name, waiting] : entries_) {
    if (now - waiting.since >= waited) add(name);
  }
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    if (repeats_[id].open && now - repeats_[id].since >= waited) add(cache_.at(id).name);
  }
  for (const auto& [name, waiting] : stalls_) add(name);
  Calls calls;
  for (const auto& [plain, several] : names) {
    if (several.size() < 2) continue;
    for (const auto view : several) {
      const std::string name(view);
      auto& ranks = calls[std::string(plain)][name];
      if (const auto* have = submitted_sources(name)) ranks = present(*have);
      if (const auto found = stalls_.find(name); found != stalls_.end()) ranks.add(found->second.report.present);
    }
  }
  return calls;
}

// Other nodes than the root report the names that not all ranks below them have submitted.
void Negotiator::check_verbs(Clock::time_point now) {
  for (const auto& [plain, names] : open_calls(now, kSettling)) {
    if (tree_.is_root()) {
      check_names(plain, names, now);
      continue;
    }
    for (const auto& [name, present] : names) {
      if (std::exchange(reported_mismatches_[name], present.size()) == present.size()) continue;
      report_.stalls.push_back({.name = name, .label = verb_of(name, plain) + " '" + plain + "'", .present = present});
    }
  }
  for (auto& [plain, suspicion] : suspicions_) report_if_blocked(plain, suspicion);  // a rank may have joined
}

// Suspects a name at the root once every rank has submitted one of its verbs. Ranks that are never seen to wait, as
// those of a framework that waits itself, get the error after the time of the stall check.
void Negotiator::check_names(const std::string& plain, const Names& names, Clock::time_point now) {
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
    decision.request.name = plain;
    extra_.push_back(std::move(decision));
    return;
  }
  auto& since = found->second.since;
  if (since == Clock::time_point{}) since = now;
  if (options_.stall_warning.count() > 0 && now - since >= options_.stall_warning) fail_mismatch(plain, names);
}

void Negotiator::suspect(const std::string& plain) {
  suspicions_[plain] = {.changes = ++changes_, .blocked = std::vector<bool>(sources(), false)};
}

void Negotiator::end_suspicion(const Decision& decision) {
  if (!suspicions_.empty()) suspicions_.erase(std::string(name_without_verb(name_of(decision))));
}

void Negotiator::record_waiter(const std::string& name) {
  const auto found = suspicions_.find(std::string(name_without_verb(name)));
  if (found == suspicions_.end()) return;
  found->second.blocked[0] = true;
  report_if_blocked(found->first, found->second);
}

// A report that was sent before its sender knew of the suspicion is about an earlier one.
void Negotiator::receive_blocked(std::size_t source, const Report& report) {
  for (const auto& plain : report.blocked) {
    const auto found = suspicions_.find(plain);
    if (found == suspicions_.end() || report.changes < found->second.changes) continue;
    found->second.blocked[source] = true;
    report_if_blocked(plain, found->second);
  }
}

void Negotiator::report_if_blocked(const std::string& plain, Suspicion& suspicion) {
  if (suspicion.reported || !all_submitted(suspicion.blocked)) return;
  suspicion.reported = true;
  report_.blocked.push_back(plain);
}

// Fails the names at the root in which all ranks are blocked. A request of the name may have become complete with the
// same reports: the plan then has a decision about it.
void Negotiator::fail_blocked(const std::vector<std::string>& blocked, const Plan& plan, Clock::time_point now) {
  if (blocked.empty()) return;
  const auto calls = open_calls(now, std::chrono::milliseconds(0));
  for (const auto& plain : blocked) {
    const bool decided = std::any_of(plan.decisions.begin(), plan.decisions.end(), [&](const Decision& decision) {
      return name_without_verb(name_of(decision)) == plain;
    });
    const auto names = calls.find(plain);
    if (!decided && suspicions_.contains(plain) && names != calls.end()) fail_mismatch(plain, names->second);
  }
}

void Negotiator::fail_mismatch(const std::string& plain, const Names& names) {
  std::vector<std::pair<RankSet, std::string>> callers;  // ranks, and the verb that they call
  for (const auto& [name, present] : names) {
    if (present.empty()) continue;  // its ranks have joined meanwhile
    callers.emplace_back(world_ranks_of(present, tree_.world_ranks), verb_of(name, plain));
  }
  std::sort(callers.begin(), callers.end(),
            [](const auto& a, const auto& b) { return a.first.lowest() < b.first.lowest(); });
  std::string text;
  for (const auto& [ranks, verb] : callers) {
    text += (text.empty() ? verb + " '" + plain + "': " : ", ") + describe_ranks(ranks) +
            (ranks.size() > 1 ? " call " : " calls ") + verb;
  }
  text += "; all ranks must pass the same";
  for (const auto& [name, present] : names) {
    Decision decision;
    decision.kind = Decision::Kind::fail;
    decision.request.name = name;
    decision.text = text;
    extra_.push_back(std::move(decision));
  }
}

// The failure ends every submission of the name on its rank, so none counts for the name's next use: neither those that
// are known here nor those in reports that children sent before they applied the failure.
void Negotiator::record_failure(const std::string& name) {
  ++changes_;
  remove_submissions(name);
  if (!tree_.children.empty()) failed_names_[name] = changes_;
}

// Returns true if the sender had not applied the last failure of `name` when it sent the report.
bool Negotiator::is_outdated(const std::string& name, const Report& report) const {
  if (failed_names_.empty()) return false;
  const auto failed = failed_names_.find(name);
  return failed != failed_names_.end() && report.changes < failed->second;
}

// Returns the request that the sender of the report means by the id, if it had not yet given the id to another one.
std::shared_ptr<const Request> Negotiator::former_request(std::uint32_t id, const Report& report) const {
  for (const auto& former : former_requests_) {
    if (former.id == id && report.changes < former.changes) return former.request;
  }
  return nullptr;
}

// Drops the changes that all children have applied.
void Negotiator::record_changes_seen(std::size_t source, std::uint64_t changes) {
  auto& known = changes_seen_[source - 1];
  known = std::max(known, changes);
  if (failed_names_.empty() && former_requests_.empty()) return;
  const auto seen = *std::min_element(changes_seen_.begin(), changes_seen_.end());
  std::erase_if(failed_names_, [seen](const auto& failed) { return failed.second <= seen; });
  std::erase_if(former_requests_, [seen](const auto& former) { return former.changes <= seen; });
}

void Negotiator::remove_submissions(const std::string& name) {
  entries_.erase(name);
  remove_stall(name);
  std::erase_if(report_.submissions, [&](const auto& submissions) { return submissions.front().request.name == name; });
  const auto id = cache_.id_of(name);
  if (id) std::erase(report_.cached, *id);
  if (!id || *id >= repeats_.size() || !repeats_[*id].open) return;
  repeats_[*id].open = false;
  --open_repeats_;
}

}  // namespace perseus
