// The Negotiator's check for ranks that call different verbs with one name.
//
// Adapters put the verb in front of a name, so that one rank may have an allreduce and a broadcast called "x" in flight
// at once. Ranks that call different verbs therefore submit different names, and each would wait for the others.
#include <algorithm>
#include <utility>

#include "control/negotiator.h"

namespace perseus {

namespace {

// Ranks may submit two verbs with one name in different orders. The check allows this much time for the second.
constexpr std::chrono::milliseconds kSettling{500};

void add(std::vector<int>& ranks, const std::vector<int>& more) {
  for (const int rank : more) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  }
}

std::string verb_of(const std::string& name, const std::string& plain) {
  return name.substr(0, name.size() - plain.size() - 1);
}

}  // namespace

// Returns all open names that have waited for kSettling, grouped by the name that the caller gave.
Negotiator::Calls Negotiator::settled_calls(Clock::time_point now) const {
  Calls calls;
  const auto add_open = [&](const std::string& name, const std::vector<bool>& have, Clock::time_point since) {
    if (now - since < kSettling) return;
    if (const auto plain = name_without_verb(name); plain != name) calls[std::string(plain)][name] = present(have);
  };
  for (const auto& [name, waiting] : entries_) add_open(name, waiting.have, waiting.since);
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    if (repeats_[id].open) add_open(cache_.at(id).name, repeats_[id].have, repeats_[id].since);
  }
  for (const auto& [name, waiting] : stalls_) {
    if (const auto plain = name_without_verb(name); plain != name) {
      add(calls[std::string(plain)][name], waiting.report.present);
    }
  }
  std::erase_if(calls, [](const auto& call) { return call.second.size() < 2; });
  return calls;
}

// Fails all names of a mismatch at the root once every rank has submitted one of them. Other nodes report to the root
// the names that not all ranks below them have submitted.
void Negotiator::check_verbs(Clock::time_point now) {
  for (const auto& [plain, names] : settled_calls(now)) {
    if (tree_.is_root()) {
      std::vector<int> ranks;
      std::size_t submissions = 0;
      for (const auto& [name, present] : names) {
        add(ranks, present);
        submissions += present.size();
      }
      if (submissions > ranks.size()) continue;  // a rank calls several of the verbs: the other ranks may follow
      if (world_ranks_missing(ranks).empty()) fail_mismatch(plain, names);
      continue;
    }
    for (const auto& [name, present] : names) {
      if (std::exchange(reported_mismatches_[name], present.size()) == present.size()) continue;
      report_.stalls.push_back({.name = name, .label = verb_of(name, plain) + " '" + plain + "'", .present = present});
    }
  }
}

void Negotiator::fail_mismatch(const std::string& plain, const std::map<std::string, std::vector<int>>& names) {
  std::vector<std::pair<std::vector<int>, std::string>> callers;  // ranks, and the verb that they call
  for (const auto& [name, present] : names) {
    std::vector<int> ranks;
    ranks.reserve(present.size());
    for (const int rank : present) ranks.push_back(tree_.world_ranks[static_cast<std::size_t>(rank)]);
    std::sort(ranks.begin(), ranks.end());
    callers.emplace_back(std::move(ranks), verb_of(name, plain));
  }
  std::sort(callers.begin(), callers.end());
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
