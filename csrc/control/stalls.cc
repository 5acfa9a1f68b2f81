// Negotiator's second half: names that wait too long for some ranks.
#include <algorithm>
#include <utility>

#include "control/negotiator.h"

namespace perseus {

std::vector<int> Negotiator::world_ranks_missing(const std::vector<int>& present) const {
  std::vector<int> missing;
  for (int rank = 0; rank < tree_.size(); ++rank) {
    const bool here = std::find(present.begin(), present.end(), rank) != present.end();
    if (!here && !joined_[static_cast<std::size_t>(rank)]) {
      missing.push_back(tree_.world_ranks[static_cast<std::size_t>(rank)]);
    }
  }
  return missing;
}

const std::vector<bool>* Negotiator::have_of(const std::string& name) const {
  if (const auto found = entries_.find(name); found != entries_.end()) return &found->second.have;
  const auto id = cache_.id_of(name);
  return id && *id < repeats_.size() && repeats_[*id].open ? &repeats_[*id].have : nullptr;
}

// The ranks of the sources that have asked.
std::vector<int> Negotiator::present(const std::vector<bool>& have) const {
  std::vector<int> ranks;
  for (std::size_t source = 0; source < sources(); ++source) {
    if (!have[source]) continue;
    const auto those = ranks_of(source);
    ranks.insert(ranks.end(), those.begin(), those.end());
  }
  return ranks;
}

void Negotiator::check_stalls(Clock::time_point now) {
  if (closed_) return;
  for (auto& [name, waiting] : entries_) {
    check_stall(waiting.claims.front().request, waiting.have, waiting.since, waiting.warned, now);
  }
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    auto& waiting = repeats_[id];
    if (waiting.open) check_stall(cache_.at(id), waiting.have, waiting.since, waiting.warned, now);
  }
  check_verbs(now);
  warn_of_stalls(now);
}

// A name waits no more: neither here nor, by a note that is still to be sent, at the root.
void Negotiator::forget_stall(const std::string& name) {
  if (!notes_.empty()) notes_.erase(name);
  if (!told_mismatches_.empty()) told_mismatches_.erase(name);
  std::erase_if(report_.stalls, [&](const StallNote& note) { return note.name == name; });
}

// Every node tells of what waits below it. One warning has what all know: where there are other nodes it waits for the
// next look.
void Negotiator::warn_of_stalls(Clock::time_point now) {
  const bool alone = std::all_of(tree_.ranks_below.begin(), tree_.ranks_below.end(),
                                 [](const auto& ranks) { return ranks.size() == 1; });
  for (auto& [name, waiting] : notes_) {
    if (!waiting.due) continue;
    if (std::exchange(waiting.fresh, false) && !alone) continue;
    waiting.due = false;
    waiting.warned = now;
    warn_of_stall(waiting, now);
  }
}

void Negotiator::check_stall(const Request& request, const std::vector<bool>& have, Clock::time_point since,
                             Clock::time_point& warned, Clock::time_point now) {
  const auto warning = options_.stall_warning, shutdown = options_.stall_shutdown;
  const bool late = warning.count() > 0 && now - warned >= warning;
  const bool over = shutdown.count() > 0 && now - since >= shutdown;
  if (!late && !over) return;
  warned = now;
  StallNote note;
  note.name = request.name;
  note.label = request.label();
  note.present = present(have);
  note.waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - since).count();
  if (tree_.is_root()) {
    hear_of_stall(std::move(note), now);
  } else {
    report_.stalls.push_back(std::move(note));
  }
}

void Negotiator::hear_of_stall(StallNote note, Clock::time_point now) {
  // Told because of another verb with the same name, see verb_mismatch.cc.
  const bool early = std::chrono::milliseconds(note.waited_ms) < options_.stall_warning;
  auto [found, fresh] = notes_.try_emplace(note.name);
  auto& waiting = found->second;
  if (fresh) waiting.since = now - std::chrono::milliseconds(note.waited_ms);
  for (const int rank : waiting.note.present) {
    if (std::find(note.present.begin(), note.present.end(), rank) == note.present.end()) note.present.push_back(rank);
  }
  waiting.note = std::move(note);
  if (const auto* have = have_of(found->first)) {
    auto& known = waiting.note.present;
    for (const int rank : present(*have)) {
      if (std::find(known.begin(), known.end(), rank) == known.end()) known.push_back(rank);
    }
  }
  // Late notes of a period that was warned of already wait for the next.
  const auto period = options_.stall_warning;
  const bool over = options_.stall_shutdown.count() > 0 && now - waiting.since >= options_.stall_shutdown;
  if (!over && (early || now - waiting.warned < period / 2)) return;
  waiting.fresh = waiting.fresh || !waiting.due;
  waiting.due = true;
}

void Negotiator::warn_of_stall(const Waiting& waiting, Clock::time_point now) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - waiting.since);
  std::vector<int> ready;
  for (const int rank : waiting.note.present) ready.push_back(tree_.world_ranks[static_cast<std::size_t>(rank)]);
  const bool over = options_.stall_shutdown.count() > 0 && waited >= options_.stall_shutdown;
  const auto tenths = ((over ? options_.stall_shutdown : waited).count() + 50) / 100;
  Decision decision;
  decision.request.name = waiting.note.name;
  decision.text = waiting.note.label + (over ? " timed out after a timeout of " : " has waited ") +
                  std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s: submitted by " +
                  describe_ranks(ready) + ", not by " + describe_ranks(world_ranks_missing(waiting.note.present)) +
                  ". All ranks must call the same collectives; is one still busy, or has it taken another path?";
  decision.kind = over ? Decision::Kind::close : Decision::Kind::warn;
  decision.error = ErrorKind::timed_out;
  if (over || options_.stall_warning.count() > 0) extra_.push_back(std::move(decision));
}

}  // namespace perseus
