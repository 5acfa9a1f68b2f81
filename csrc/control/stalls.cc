// The Negotiator's stall check: reports requests that wait too long for some ranks.
#include <algorithm>
#include <utility>

#include "control/negotiator.h"

namespace perseus {

// Returns the ranks that are not present and have not joined.
RankSet Negotiator::missing(const RankSet& present) const {
  RankSet ranks;
  ranks.add_run({0, tree_.size()});
  ranks.remove(present);
  ranks.remove(joined_);
  return ranks;
}

std::string Negotiator::describe(const RankSet& ranks) const {
  return describe_ranks(world_ranks_of(ranks, tree_.world_ranks));
}

const std::vector<bool>* Negotiator::submitted_sources(const std::string& name) const {
  if (const auto found = entries_.find(name); found != entries_.end()) return &found->second.have;
  const auto id = cache_.id_of(name);
  return id && *id < repeats_.size() && repeats_[*id].open ? &repeats_[*id].have : nullptr;
}

// Returns the ranks of the sources that have submitted a name.
RankSet Negotiator::present(const std::vector<bool>& have) const {
  RankSet ranks;
  for (std::size_t source = 0; source < sources(); ++source) {
    if (have[source]) ranks.add(ranks_of(source));
  }
  return ranks;
}

void Negotiator::check_stalls(Clock::time_point now) {
  if (closed_) return;
  for (auto& [name, waiting] : entries_) {
    check_stall(waiting.submissions.front().request, waiting.have, waiting.since, waiting.warned, now);
  }
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    auto& waiting = repeats_[id];
    if (waiting.open) check_stall(cache_.at(id), waiting.have, waiting.since, waiting.warned, now);
  }
  check_verbs(now);
  warn_of_stalls(now);
}

// Removes a name that no longer waits, also from the reports that are still to be sent.
void Negotiator::remove_stall(const std::string& name) {
  if (!stalls_.empty()) stalls_.erase(name);
  if (!reported_mismatches_.empty()) reported_mismatches_.erase(name);
  std::erase_if(report_.stalls, [&](const StallReport& report) { return report.name == name; });
}

// Warns about stalled names at the root. Every node reports what waits below it, and one warning combines the reports.
// If there are other nodes, the warning therefore waits for the next check.
void Negotiator::warn_of_stalls(Clock::time_point now) {
  const bool alone = std::all_of(tree_.ranks_below.begin(), tree_.ranks_below.end(),
                                 [](const auto& ranks) { return ranks.size() == 1; });
  for (auto& [name, waiting] : stalls_) {
    if (!waiting.due) continue;
    if (std::exchange(waiting.fresh, false) && !alone) continue;
    waiting.due = false;
    waiting.warned = now;
    warn_of_stall(waiting, now);
  }
}

// Adds what has waited longest to the root's last plan, so that a person who ends a job sees why it stood still.
void Negotiator::describe_longest_wait(Plan& plan, Clock::time_point now) {
  auto longest = now - std::chrono::seconds(5);  // shorter waits are ordinary
  std::string label;
  RankSet ranks;
  const auto compare = [&](const Request& request, const std::vector<bool>& have, Clock::time_point since) {
    if (since >= longest) return;
    longest = since;
    label = request.label_with_members();
    const auto reported = stalls_.find(request.name);
    ranks = reported == stalls_.end() ? present(have) : reported->second.report.present;
  };
  for (const auto& [name, waiting] : entries_) {
    compare(waiting.submissions.front().request, waiting.have, waiting.since);
  }
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    if (repeats_[id].open) compare(cache_.at(id), repeats_[id].have, repeats_[id].since);
  }
  const auto others = missing(ranks);
  if (label.empty() || ranks.empty() || others.empty()) return;
  Decision decision;
  decision.kind = Decision::Kind::warn;
  decision.text = describe(ranks) + (ranks.size() == 1 ? " was" : " were") + " waiting for " + describe(others) +
                  " in " + label + " for " +
                  std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - longest).count()) + " s";
  plan.decisions.push_back(std::move(decision));
}

void Negotiator::check_stall(const Request& request, const std::vector<bool>& have, Clock::time_point since,
                             Clock::time_point& warned, Clock::time_point now) {
  const auto warning = warned == since ? options_.first_stall_warning : options_.stall_warning;
  const auto shutdown = options_.stall_shutdown;
  const bool late = options_.stall_warning.count() > 0 && now - warned >= warning;
  const bool over = shutdown.count() > 0 && now - since >= shutdown;
  if (!late && !over) return;
  warned = now;
  StallReport report;
  report.name = request.name;
  report.label = request.label_with_members();
  report.present = present(have);
  report.waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - since).count();
  if (tree_.is_root()) {
    add_stall_report(std::move(report), now);
  } else {
    report_.stalls.push_back(std::move(report));
  }
}

void Negotiator::add_stall_report(StallReport report, Clock::time_point now) {
  // An early report comes from verb_mismatch.cc.
  const bool early = std::chrono::milliseconds(report.waited_ms) < options_.first_stall_warning;
  auto [found, fresh] = stalls_.try_emplace(report.name);
  auto& waiting = found->second;
  const auto period = options_.stall_warning;
  if (fresh) {
    waiting.since = now - std::chrono::milliseconds(report.waited_ms);
    waiting.warned = waiting.since - period;
  }
  report.present.add(waiting.report.present);
  if (const auto* have = submitted_sources(found->first)) report.present.add(present(*have));
  waiting.report = std::move(report);
  // A late report of a period for which a warning was already given waits for the next period.
  const bool over = options_.stall_shutdown.count() > 0 && now - waiting.since >= options_.stall_shutdown;
  if (!over && (early || now - waiting.warned < period / 2)) return;
  waiting.fresh = waiting.fresh || !waiting.due;
  waiting.due = true;
}

void Negotiator::warn_of_stall(const Stall& waiting, Clock::time_point now) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - waiting.since);
  const bool over = options_.stall_shutdown.count() > 0 && waited >= options_.stall_shutdown;
  const auto tenths = ((over ? options_.stall_shutdown : waited).count() + 50) / 100;
  Decision decision;
  decision.request.name = waiting.report.name;
  decision.text = waiting.report.label + (over ? " timed out after a timeout of " : " has waited ") +
                  std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s: submitted by " +
                  describe(waiting.report.present) + ", not by " + describe(missing(waiting.report.present)) +
                  ". All ranks must call the same collectives; check whether the missing ranks are still busy or have "
                  "taken another branch.";
  decision.kind = over ? Decision::Kind::close : Decision::Kind::warn;
  decision.error = ErrorKind::timed_out;
  if (over || options_.stall_warning.count() > 0) extra_.push_back(std::move(decision));
}

}  // namespace perseus
