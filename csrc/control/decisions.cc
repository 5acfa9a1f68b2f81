// The Negotiator's decisions: the root makes them, and every rank applies them in the order of the plan.
#include <algorithm>
#include <utility>

#include "control/negotiator.h"

namespace perseus {

Decision Negotiator::shutdown_message_of(int rank) const {
  Decision close;
  close.kind = Decision::Kind::close;
  close.error = ErrorKind::peer_lost;
  close.rank = tree_.world_ranks[static_cast<std::size_t>(rank)];
  close.text = "rank " + std::to_string(close.rank) + " has left the job (it shut down or ended)";
  return close;
}

Decision Negotiator::decide(const std::vector<Submission>& submissions) {
  Decision decision;
  decision.request = std::make_shared<const Request>(submissions.front().request);
  const auto& request = *decision.request;
  std::size_t asked = 0;
  for (const auto& submission : submissions) asked += submission.ranks.size();
  if (submissions.size() > 1) {
    decision.kind = Decision::Kind::fail;
    decision.text = describe_disagreement(submissions, tree_.world_ranks);
  } else if (asked < static_cast<std::size_t>(tree_.size()) && !works_with_joined_ranks(request.verb)) {
    decision.kind = Decision::Kind::fail;
    decision.text = request.label() +
                    " is not supported while a rank has joined (join() contributes zeros to allreduce only); call it "
                    "before any rank joins";
  } else if (const auto known = cache_.find(request)) {
    return decide_cached(*known);
  } else if (const auto id = cache_.choose_id(request)) {
    decision.id = *id;
    give_id(*id, decision.request);
  }
  return decision;
}

Decision Negotiator::decide_cached(std::uint32_t id) {
  Decision decision;
  decision.id = id;
  decision.cached = true;
  decision.request = cache_.shared(id);
  cache_.mark_used(id);
  return decision;
}

void Negotiator::decide_joined(std::vector<Decision>& plan) {
  if (join_order_.size() < static_cast<std::size_t>(tree_.size())) return;
  Decision all;
  all.kind = Decision::Kind::joined;
  all.rank = tree_.world_ranks[static_cast<std::size_t>(join_order_.back())];
  plan.push_back(std::move(all));
  join_order_.clear();
}

// Gives an id to a request. If the id had another name, submissions that are known here by the id become full ones.
// Children may have sent further reports in which the id means the other name.
void Negotiator::give_id(std::uint32_t id, std::shared_ptr<const Request> request) {
  if (auto former = cache_.former(id, *request)) {
    ++changes_;
    if (id < repeats_.size() && repeats_[id].open) turn_repeat_into_entry(id);
    if (std::erase(report_.cached, id) > 0) report_.submissions.push_back({of_all_sources(*former)});
    if (!tree_.children.empty()) former_requests_.push_back({id, changes_, std::move(former)});
  }
  cache_.put(id, std::move(request));
}

std::vector<Decision> Negotiator::take_decisions() {
  if (plans_.empty()) return {};
  auto next = std::move(plans_.front());
  plans_.pop_front();
  return next;
}

void Negotiator::apply(Plan plan) {
  for (auto& decision : plan.decisions) {
    if (decision.kind == Decision::Kind::run && !tree_.is_root()) {
      if (decision.cached) {
        // Before this rank executes the decision, the id may get another request.
        decision.request = cache_.shared(decision.id);
      } else if (decision.id != Decision::kNoId) {
        give_id(decision.id, decision.request);
      }
    }
    if (decision.kind == Decision::Kind::fail) record_failure(decision.name());
    if (decision.kind == Decision::Kind::suspect) ++changes_;
    const bool about_request = decision.kind == Decision::Kind::run || decision.kind == Decision::Kind::fail;
    if (about_request || decision.kind == Decision::Kind::suspect) stalled_.apply(decision, changes_);
    if (decision.kind == Decision::Kind::joined) {
      joined_ = {};
    }
    if (decision.kind == Decision::Kind::close) {
      closed_ = true;
      entries_.clear();
      repeats_.clear();
      open_repeats_ = 0;
      stalled_.clear();
      report_ = {};
    }
  }
  plans_.push_back(std::move(plan.decisions));
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
  stalled_.remove(name);
  std::erase_if(report_.submissions, [&](const auto& submissions) { return submissions.front().request.name == name; });
  std::erase_if(report_.contradictions, [&](const auto& each) { return each.request.name == name; });
  const auto id = cache_.id_of(name);
  if (id) std::erase(report_.cached, *id);
  if (!id || *id >= repeats_.size() || !repeats_[*id].open) return;
  repeats_[*id].open = false;
  --open_repeats_;
}

}  // namespace perseus
