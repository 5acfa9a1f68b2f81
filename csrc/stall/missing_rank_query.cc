#include "stall/missing_rank_query.h"

#include "base/error.h"
#include "control/serialization.h"

namespace perseus {
namespace {

// Limits the runs of ranks in an answer, so that it fits into a message of a watch connection.
constexpr std::size_t kMostRuns = 24;

// The places of Query::known.
constexpr std::size_t kReached = 0, kBehind = 1, kUnreachable = 2;

// A longer time in an answer is malformed.
constexpr std::chrono::milliseconds kLongestRoundTrip = std::chrono::hours(24);

}  // namespace

MissingRankQuery::MissingRankQuery(int rank, std::vector<int> parents, HowFar how_far,
                                   std::chrono::milliseconds timeout, std::size_t most_listed, RoundTrip round_trip)
    : rank_(rank),
      parents_(std::move(parents)),
      how_far_(std::move(how_far)),
      timeout_(timeout),
      most_listed_(most_listed),
      round_trip_(std::move(round_trip)) {
  const int parent = parents_[static_cast<std::size_t>(rank_)];
  for (int other = 0; is_rank(other); ++other) {
    if (other == parent || parents_[static_cast<std::size_t>(other)] == rank_) neighbours_.push_back(other);
  }
}

void MissingRankQuery::set_neighbours(const std::vector<int>& ranks) {
  RankSet gone;
  std::erase_if(neighbours_, [&](int rank) {
    if (std::ranges::find(ranks, rank) != ranks.end()) return false;
    gone.add(rank);
    return true;
  });
  if (gone.empty()) return;
  unconnected_.add(gone);
  for (auto& [point, query] : queries_) {
    query.awaited.remove(gone);
    query.known[kUnreachable].add(gone);
    if (query.towards >= 0) report(point, query);
  }
}

Writer MissingRankQuery::begin_message(Kind kind, const ProgressPoint& point, int asker) {
  Writer to;
  to.number(static_cast<std::uint64_t>(kMark));
  to.number(static_cast<std::uint64_t>(kind));
  to.number(point.engine);
  to.signed_number(point.number);
  to.text(point.name);
  to.signed_number(asker);
  return to;
}

void MissingRankQuery::ask(const ProgressPoint& point, const RankSet& members, Clock::time_point now, bool last) {
  if (const auto found = queries_.find(point); found != queries_.end() && now < found->second.until) return;
  forward(begin_message(Kind::question, point, rank_).take(), rank_);
  begin(point, {.asker = rank_, .members = members, .left = timeout_, .asked = timeout_, .last = last}, kReached);
}

// Starts this rank's part of a query whose question is sent.
void MissingRankQuery::begin(const ProgressPoint& point, Query query, std::size_t own_state) {
  for (const int rank : neighbours_) {
    if (rank != query.towards) query.awaited.add(rank);
  }
  query.known[own_state].add(rank_);
  query.known[kUnreachable] = unconnected_;
  measure(query);
  auto& begun = queries_[point] = std::move(query);
  report(point, begun);
}

void MissingRankQuery::receive(int from, std::string_view bytes, Clock::time_point now) {
  const auto require = [](bool is_well_formed) {
    if (is_well_formed) return;
    throw Error(ErrorKind::transport,
                "missing-rank query: a message from another rank is malformed; check that all ranks run the same "
                "version of perseus_like");
  };
  const auto are_ranks = [&](const RankSet& ranks) { return ranks.empty() || is_rank(ranks.runs().back().end - 1); };
  require(is_of(bytes));
  Reader message(bytes.substr(1));
  const auto kind = message.number();
  const ProgressPoint point{message.number(), message.signed_number(), message.text()};
  const int asker = message.small_number();
  require(kind <= static_cast<std::uint64_t>(Kind::verdict) && is_rank(asker));
  switch (static_cast<Kind>(kind)) {
    case Kind::question: require(asker != rank_); return receive_question(from, point, asker, bytes, now);
    case Kind::answer: {
      const auto state = message.number();
      const auto ranks = message.ranks();
      const auto round_trip = message.number();
      const bool is_complete = message.number() != 0;
      require(state <= kUnreachable && are_ranks(ranks) &&
              round_trip <= static_cast<std::uint64_t>(kLongestRoundTrip.count()));
      const auto found = queries_.find(point);
      if (found == queries_.end() || found->second.asker != asker) return;
      auto& query = found->second;
      if (asker != rank_ && query.towards < 0) return;
      query.known[state].add(ranks);
      auto& slowest = query.round_trips[from];
      slowest = std::max(slowest, std::chrono::milliseconds(round_trip));
      if (is_complete) query.awaited.remove({from});
      return report(point, query);
    }
    case Kind::superseded: {
      if (asker != rank_) return send_towards(asker, std::string(bytes));
      const int lower = message.small_number();
      require(is_rank(lower));
      const auto found = queries_.find(point);
      if (found != queries_.end() && found->second.asker == rank_) {
        found->second = {.asker = lower, .until = now + 2 * timeout_};
      }
      return;
    }
    case Kind::verdict: {
      const auto found = queries_.find(point);
      if (asker != rank_ && found != queries_.end() && found->second.asker == asker) queries_.erase(found);
      Verdict verdict{point, asker, message.ranks(), message.ranks(), message.small_number()};
      verdict.partial = message.number() != 0;
      verdict.last = message.number() != 0;
      require(are_ranks(verdict.silent) && are_ranks(verdict.behind));
      verdicts_.push_back(std::move(verdict));
      return forward(std::string(bytes), from);
    }
  }
}

void MissingRankQuery::receive_question(int from, const ProgressPoint& point, int asker, std::string_view bytes,
                                        Clock::time_point now) {
  const auto known = queries_.find(point);
  const bool is_known = known != queries_.end() && now < known->second.until;
  if (is_known && known->second.asker < asker) {
    auto superseded = begin_message(Kind::superseded, point, asker);
    superseded.signed_number(known->second.asker);
    return send_towards(asker, superseded.take());
  }
  forward(std::string(bytes), from);
  const auto until = now + 2 * timeout_;
  if (is_known && known->second.asker == asker && known->second.towards >= 0) {
    auto& query = known->second;
    query.until = until;
    query.is_urgent = true;
    measure(query);
    return report(point, query);
  }
  // The verdict comes here, too, unless the rank that asked is lost before.
  begin(point, {.asker = asker, .until = until, .towards = from},
        how_far_(point) == Progress::reached ? kReached : kBehind);
}

RankSet MissingRankQuery::Query::answered() const {
  auto ranks = known[kReached];
  ranks.add(known[kBehind]);
  return ranks;
}

// Returns the slowest round trips on a way from this rank through the ranks behind it, one after the other.
std::chrono::milliseconds MissingRankQuery::Query::round_trip() const {
  std::chrono::milliseconds behind{0};
  for (const auto& [neighbour, time] : round_trips) behind = std::max(behind, time);
  return std::min(own_round_trip + behind, kLongestRoundTrip);
}

// Completes this rank's own query once all members have answered. Sends the answers to another rank's query on, if
// those of all ranks behind this one are here or the rank that asks cannot wait for them. May remove the query.
void MissingRankQuery::report(const ProgressPoint& point, Query& query) {
  if (query.asker != rank_) {
    if (query.awaited.empty() || query.is_urgent) send_answers(point, query);
    return;
  }
  auto others = query.members;
  others.remove(query.answered());
  if (!others.empty()) return;
  finish(point, query);
  queries_.erase(point);
}

// Sends what was not sent before.
void MissingRankQuery::send_answers(const ProgressPoint& point, Query& query) {
  const bool is_complete = query.awaited.empty();
  const auto round_trip = query.round_trip();
  const auto send = [&](std::size_t state, const RankSet& ranks, bool is_last) {
    auto answer = begin_message(Kind::answer, point, query.asker);
    answer.number(state);
    answer.ranks(ranks);
    answer.number(static_cast<std::uint64_t>(round_trip.count()));
    answer.number(is_complete && is_last ? 1 : 0);
    outgoing_.push_back({query.towards, answer.take()});
  };
  bool any = round_trip > query.sent_round_trip || (is_complete && !std::exchange(query.is_complete, true));
  query.sent_round_trip = std::max(query.sent_round_trip, round_trip);
  // The ranks that have reached the point come last, with this rank's own answer.
  for (const auto state : {kUnreachable, kBehind, kReached}) {
    auto news = query.known[state];
    news.remove(std::exchange(query.sent[state], query.known[state]));
    RankSet part;
    for (const auto& run : news.runs()) {
      if (part.runs().size() == kMostRuns) send(state, std::exchange(part, {}), false);
      part.add_run(run);
    }
    const bool is_last = state == kReached;
    if (!part.empty() || (is_last && any)) send(state, part, is_last);
  }
}

void MissingRankQuery::look(Clock::time_point now) {
  const auto passed = std::clamp<Clock::duration>(now - looked_, Clock::duration::zero(), timeout_ / 8);
  looked_ = now;
  for (auto& [point, query] : queries_) {
    if (query.asker != rank_) continue;
    query.left -= passed;
    if (query.left <= Clock::duration::zero()) measure(query);
  }
  std::erase_if(queries_, [&](const auto& each) {
    const auto& [point, query] = each;
    if (query.asker != rank_) return query.until <= now;
    const bool over = query.left + query.round_trip() <= Clock::duration::zero();
    if (over) finish(point, query);
    return over;
  });
  // To a further question, ranks answer at once what they know, because ranks behind them may be stopped. A connection
  // that is slower than before shows it only while a message is on its way.
  for (auto& [point, query] : queries_) {
    if (query.asker != rank_ || query.asked - query.left < timeout_ / 4) continue;
    query.asked = query.left;
    forward(begin_message(Kind::question, point, rank_).take(), rank_);
  }
}

// Measures the slowest connection to a rank behind this one. Its time is 0 if that is not slow: the timeout has room
// for ordinary times.
void MissingRankQuery::measure(Query& query) const {
  if (!round_trip_) return;
  for (const int rank : neighbours_) {
    const auto time = rank == query.towards ? std::chrono::milliseconds(0) : round_trip_(rank);
    if (time >= timeout_ / 2) query.own_round_trip = std::max(query.own_round_trip, time);
  }
}

// Sends to all neighbours except `from`.
void MissingRankQuery::forward(const std::string& bytes, int from) {
  for (const int rank : neighbours_) {
    if (rank != from) outgoing_.push_back({rank, bytes});
  }
}

void MissingRankQuery::send_towards(int rank, std::string bytes) {
  outgoing_.push_back({next_hop(rank_, rank), std::move(bytes)});
}

// Returns the next rank of the route in the tree: a child if `to` is below it, else the parent.
int MissingRankQuery::next_hop(int from, int to) const {
  for (int at = to; at >= 0; at = parents_[static_cast<std::size_t>(at)]) {
    if (parents_[static_cast<std::size_t>(at)] == from) return at;
  }
  return parents_[static_cast<std::size_t>(from)];
}

// Several ranks on the way to a member may be without an answer. Only the nearest of them counts as silent, because
// nothing is known about those behind it.
void MissingRankQuery::finish(const ProgressPoint& point, const Query& query) {
  const auto answered = query.answered();
  Verdict verdict{.point = point, .asker = rank_, .last = query.last};
  RankSet silent;
  auto others = query.members;
  others.remove(answered);
  for (int rank : others.ranks()) {
    for (int next = next_hop(rank, rank_); !answered.contains(next); next = next_hop(rank, rank_)) rank = next;
    if (query.known[kUnreachable].contains(rank)) {
      verdict.partial = true;
    } else {
      silent.add(rank);
    }
  }
  auto blamed = query.known[kBehind];
  blamed.add(silent);
  std::size_t listed = 0;
  for (const int rank : blamed.ranks()) {
    const bool is_silent = silent.contains(rank);
    if (!is_silent && !query.members.contains(rank)) continue;
    if (++listed > most_listed_) {
      ++verdict.more;
    } else {
      (is_silent ? verdict.silent : verdict.behind).add(rank);
    }
  }
  auto message = begin_message(Kind::verdict, point, rank_);
  message.ranks(verdict.silent);
  message.ranks(verdict.behind);
  message.signed_number(verdict.more);
  message.number(verdict.partial ? 1 : 0);
  message.number(verdict.last ? 1 : 0);
  forward(message.take(), rank_);
  verdicts_.push_back(std::move(verdict));
}

}  // namespace perseus
