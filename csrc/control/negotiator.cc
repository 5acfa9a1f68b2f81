#include "control/negotiator.h"

#include <algorithm>
#include <iterator>

namespace perseus {

Negotiator::Negotiator(Tree tree, NegotiatorOptions options)
    : tree_(std::move(tree)),
      stall_times_(options.stalls),
      cache_(options.cache_capacity),
      stalled_(tree_, stall_times_, *this, report_, extra_),
      changes_seen_(tree_.children.size(), 0) {
  if (stall_times_.first_warning.count() == 0) stall_times_.first_warning = stall_times_.warning;
}

std::size_t Negotiator::source_of(int child) const {
  const auto found = std::lower_bound(tree_.children.begin(), tree_.children.end(), child);
  if (found == tree_.children.end() || *found != child) {
    throw Error(ErrorKind::transport,
                "negotiation: rank " + std::to_string(child) + " of the group sent a report to rank " +
                    std::to_string(tree_.rank) +
                    ", which is not its parent; check that all ranks run the same version of perseus_like");
  }
  return static_cast<std::size_t>(found - tree_.children.begin()) + 1;
}

RankSet Negotiator::ranks_of(std::size_t source) const {
  auto ranks = source == 0 ? RankSet{tree_.rank} : tree_.ranks_below[source - 1];
  ranks.remove(joined_);
  return ranks;
}

bool Negotiator::all_joined(std::size_t source) const { return ranks_of(source).empty(); }

// Returns the ranks of a source that have submitted a request by its id. Ranks that have joined since then count only
// for verbs that cannot use their zeros: for such a verb, a source reports an id only if all its ranks submitted it.
RankSet Negotiator::submitters(std::size_t source, Verb verb) const {
  auto ranks = ranks_of(source);
  if (!ranks.empty() && works_with_joined_ranks(verb)) return ranks;
  return source == 0 ? RankSet{tree_.rank} : tree_.ranks_below[source - 1];
}

// Returns a request that is complete below this node as a submission.
Submission Negotiator::of_all_sources(const Request& request) const {
  Submission all{request, {}};
  for (std::size_t source = 0; source < sources(); ++source) all.ranks.add(submitters(source, request.verb));
  return all;
}

void Negotiator::visit_open(const Visitor& visitor) {
  for (auto& [name, waiting] : entries_) visitor(waiting.submissions.front().request, waiting.since, waiting.warned);
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    auto& waiting = repeats_[id];
    if (waiting.open) visitor(cache_.at(id), waiting.since, waiting.warned);
  }
}

RankSet Negotiator::submitters_of(const std::string& name) const {
  const std::vector<bool>* have = nullptr;
  if (const auto found = entries_.find(name); found != entries_.end()) {
    have = &found->second.have;
  } else if (const auto id = cache_.id_of(name); id && *id < repeats_.size() && repeats_[*id].open) {
    have = &repeats_[*id].have;
  }
  RankSet ranks;
  for (std::size_t source = 0; have != nullptr && source < sources(); ++source) {
    if ((*have)[source]) ranks.add(ranks_of(source));
  }
  return ranks;
}

bool Negotiator::all_submitted(const std::vector<bool>& have) const {
  for (std::size_t source = 0; source < sources(); ++source) {
    if (!have[source] && (joined_.empty() || !all_joined(source))) return false;
  }
  return true;
}

Negotiator::Entry& Negotiator::entry(const std::string& name, Clock::time_point now) {
  auto [found, fresh] = entries_.try_emplace(name);
  if (fresh) {
    found->second.have.assign(sources(), false);
    found->second.since = now;
    found->second.warned = now;
  }
  return found->second;
}

void Negotiator::submit(const Request& request, Clock::time_point now) {
  // The other nodes get new texts, because warnings of a stall have them.
  if (const auto id = cache_.find(request); id && !cache_.describe(*id, request.member_names)) {
    add_cached(0, *id, now);
  } else {
    add_submissions(0, {{request, {tree_.rank}}}, now);
  }
}

Negotiator::Repeat& Negotiator::repeat(std::uint32_t id, Clock::time_point now) {
  if (id >= repeats_.size()) repeats_.resize(id + 1);
  auto& waiting = repeats_[id];
  if (!waiting.open) {
    waiting.open = true;
    waiting.have.assign(sources(), false);
    waiting.missing = sources();
    waiting.since = waiting.warned = now;
    ++open_repeats_;
  }
  return waiting;
}

void Negotiator::add_cached(std::size_t source, std::uint32_t id, Clock::time_point now) {
  const auto& request = cache_.at(id);
  if (!entries_.empty() && entries_.contains(request.name)) {
    add_submissions(source, {{request, submitters(source, request.verb)}}, now);
    return;
  }
  if (recording_arrivals_) record_arrival(source, request.name);
  auto& waiting = repeat(id, now);
  if (!waiting.have[source]) {
    waiting.have[source] = true;
    --waiting.missing;
  }
  if (waiting.missing == 0 || !joined_.empty()) complete_if_ready(id);
}

void Negotiator::complete_if_ready(std::uint32_t id) {
  auto& waiting = repeats_[id];
  if (waiting.missing > 0) {
    if (joined_.empty() || !all_submitted(waiting.have)) return;
    if (!works_with_joined_ranks(cache_.at(id).verb)) {
      // The root has to learn which ranks have not submitted it.
      turn_repeat_into_entry(id);
      complete_if_ready(cache_.at(id).name);
      return;
    }
  }
  report_.cached.push_back(id);
  waiting.open = false;
  --open_repeats_;
  stalled_.remove(cache_.at(id).name);
}

// Replaces a name's cache id by its full request, because a rank submits a different request under this name.
void Negotiator::turn_repeat_into_entry(std::uint32_t id) {
  auto& waiting = repeats_[id];
  const auto& request = cache_.at(id);
  auto& full = entry(request.name, waiting.since);
  full.warned = waiting.warned;
  full.have = waiting.have;
  auto& ranks = full.submissions.emplace_back(Submission{request, {}}).ranks;
  for (std::size_t source = 0; source < sources(); ++source) {
    if (waiting.have[source]) ranks.add(submitters(source, request.verb));
  }
  waiting.open = false;
  --open_repeats_;
}

void Negotiator::add_submissions(std::size_t source, std::vector<Submission> submissions, Clock::time_point now) {
  if (submissions.empty()) return;
  const std::string name = submissions.front().request.name;
  if (open_repeats_ > 0) {
    const auto id = cache_.id_of(name);
    if (id && *id < repeats_.size() && repeats_[*id].open) turn_repeat_into_entry(*id);
  }
  auto& waiting = entry(name, now);
  waiting.have[source] = true;
  if (recording_arrivals_) record_arrival(source, name);
  for (auto& submission : submissions) {
    const auto same =
        std::find_if(waiting.submissions.begin(), waiting.submissions.end(),
                     [&](const Submission& known) { return known.request.agrees_with(submission.request); });
    if (same == waiting.submissions.end()) {
      waiting.submissions.push_back(std::move(submission));
    } else {
      same->ranks.add(submission.ranks);
    }
  }
  complete_if_ready(name);
}

// A contradiction follows its rank's submission, which waits here, is complete here, or has been reported. If the root
// has decided, it knows of no submission: the rank's next one has not come yet.
void Negotiator::add_contradiction(std::size_t source, Submission contradiction) {
  const auto& name = contradiction.request.name;
  if (const auto id = cache_.id_of(name)) {
    if (*id < repeats_.size() && repeats_[*id].open) turn_repeat_into_entry(*id);
    if (std::erase(report_.cached, *id) > 0) report_.submissions.push_back({of_all_sources(cache_.at(*id))});
  }
  const auto complete = std::find_if(report_.submissions.begin(), report_.submissions.end(),
                                     [&](const auto& each) { return each.front().request.name == name; });
  const auto open = entries_.find(name);
  if (complete != report_.submissions.end()) {
    complete->push_back(std::move(contradiction));
  } else if (open != entries_.end() && open->second.have[source]) {
    open->second.submissions.push_back(std::move(contradiction));
  } else if (!tree_.is_root()) {
    report_.contradictions.push_back(std::move(contradiction));
  }
}

void Negotiator::record_arrival(std::size_t source, const std::string& name) {
  arrivals_.push_back({name, world_ranks_of(ranks_of(source), tree_.world_ranks).ranks()});
}

void Negotiator::complete_if_ready(const std::string& name) {
  const auto found = entries_.find(name);
  if (!all_submitted(found->second.have)) return;
  report_.submissions.push_back(std::move(found->second.submissions));
  stalled_.remove(name);
  entries_.erase(found);
}

void Negotiator::complete_all_ready() {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, waiting] : entries_) names.push_back(name);
  // The table is unordered, but the order of decisions must not differ between runs.
  std::sort(names.begin(), names.end());
  for (const auto& name : names) complete_if_ready(name);
  for (std::uint32_t id = 0; id < repeats_.size() && open_repeats_ > 0; ++id) {
    if (repeats_[id].open) complete_if_ready(id);
  }
}

void Negotiator::join() {
  mark_joined(tree_.rank);
  complete_all_ready();
}

void Negotiator::mark_joined(int rank) {
  joined_.add(rank);
  report_.joined.push_back(rank);
  if (tree_.is_root()) join_order_.push_back(rank);
}

void Negotiator::leave() {
  report_.left.push_back(tree_.rank);
  urgent_ = true;
}

void Negotiator::receive(int from, std::string_view bytes, Clock::time_point now) {
  if (from == tree_.parent) {
    auto plan = decode_plan(bytes);
    for (const int child : tree_.children) relayed_.push_back({child, std::string(bytes)});
    apply(std::move(plan));
    return;
  }
  receive_report(source_of(from), decode_report(bytes), now);
}

void Negotiator::check_rank(int rank) const {
  if (rank >= 0 && rank < tree_.size()) return;
  throw Error(ErrorKind::transport, "negotiation: a report names rank " + std::to_string(rank) + " of a group of " +
                                        std::to_string(tree_.size()) +
                                        " ranks; check that all ranks run the same version of perseus_like");
}

void Negotiator::check_ranks(const RankSet& ranks) const {
  if (!ranks.empty()) check_rank(ranks.runs().back().end - 1);  // none is below 0
}

void Negotiator::check_submission(const Submission& submission) const {
  check_ranks(submission.ranks);
  if (!submission.ranks.empty()) return;
  throw Error(ErrorKind::transport,
              "negotiation: a report has " + submission.request.label() +
                  " without the ranks that submitted it; check that all ranks run the same version of perseus_like");
}

void Negotiator::check_ranks(const Report& report) const {
  for (const int rank : report.joined) check_rank(rank);
  for (const int rank : report.left) check_rank(rank);
  for (const auto& stall : report.stalls) check_ranks(stall.present);
  for (const auto& submissions : report.submissions) {
    for (const auto& submission : submissions) check_submission(submission);
  }
  for (const auto& submission : report.contradictions) check_submission(submission);
}

void Negotiator::receive_report(std::size_t source, const Report& report, Clock::time_point now) {
  check_ranks(report);
  urgent_ = urgent_ || report.urgent;
  // In a training step, a report has hundreds of ids, of which none had another meaning and none failed.
  const bool all_current = former_requests_.empty() && failed_names_.empty();
  for (const auto id : report.cached) {
    if (!all_current) {
      if (const auto former = former_request(id, report)) {
        if (!is_outdated(former->name, report)) {
          add_submissions(source, {{*former, submitters(source, former->verb)}}, now);
        }
        continue;
      }
      if (is_outdated(cache_.at(id).name, report)) continue;
    }
    add_cached(source, id, now);
  }
  for (const auto& submissions : report.submissions) {
    if (submissions.empty() || !is_outdated(submissions.front().request.name, report))
      add_submissions(source, submissions, now);
  }
  for (const auto& contradiction : report.contradictions) {
    if (!is_outdated(contradiction.request.name, report)) add_contradiction(source, contradiction);
  }
  for (const int rank : report.joined) mark_joined(rank);
  if (!report.joined.empty()) complete_all_ready();
  report_.left.insert(report_.left.end(), report.left.begin(), report.left.end());
  for (const auto& stall : report.stalls) {
    if (!is_outdated(stall.name, report)) stalled_.receive(stall, now);
  }
  stalled_.receive_blocked(report, tree_.ranks_below[source - 1]);
  record_changes_seen(source, report.changes);
}

bool Negotiator::has_news() const {
  const bool report =
      !(report_.cached.empty() && report_.submissions.empty() && report_.joined.empty() && report_.left.empty() &&
        report_.stalls.empty() && report_.blocked.empty() && report_.contradictions.empty());
  return report || !relayed_.empty() || !extra_.empty();
}

std::vector<Negotiator::Outgoing> Negotiator::shutdown_messages() {
  auto out = std::exchange(relayed_, {});
  if (closed_) return out;
  if (!tree_.is_root()) {
    Report report;
    report.left.push_back(tree_.rank);
    report.urgent = true;
    out.push_back({tree_.parent, encode(report)});
  }
  Plan plan;
  plan.decisions.push_back(shutdown_message_of(tree_.rank));
  const auto bytes = encode(plan);
  for (const int child : tree_.children) out.push_back({child, bytes});
  return out;
}

std::vector<Negotiator::Outgoing> Negotiator::flush(Clock::time_point now) {
  std::vector<Outgoing> out = std::exchange(relayed_, {});
  if (!has_news()) return out;
  if (!tree_.is_root()) {
    report_.urgent = std::exchange(urgent_, false);
    report_.changes = changes_;
    if (!closed_) out.push_back({tree_.parent, encode(report_)});
    report_ = {};
    return out;
  }
  urgent_ = false;
  Plan plan;
  const auto report = std::exchange(report_, {});
  plan.decisions.reserve(report.cached.size() + report.submissions.size() + extra_.size());
  for (const auto id : report.cached) plan.decisions.push_back(decide_cached(id));
  for (const auto& submissions : report.submissions) plan.decisions.push_back(decide(submissions));
  decide_joined(plan.decisions);
  stalled_.fail_blocked(report.blocked, plan);
  std::move(extra_.begin(), extra_.end(), std::back_inserter(plan.decisions));
  extra_.clear();
  if (!report.left.empty() && !closed_) {
    stalled_.describe_longest_wait(plan, now);
    plan.decisions.push_back(shutdown_message_of(report.left.front()));
  }
  if (plan.empty()) return out;
  const auto bytes = encode(plan);
  for (const int child : tree_.children) out.push_back({child, bytes});
  apply(std::move(plan));
  return out;
}

}  // namespace perseus
