#include "stall/missing_rank_query.h"

#include <algorithm>

#include "base/error.h"
#include "control/serialization.h"

namespace perseus {
namespace {

// Limits the ranks in an answer, so that it fits into a message of a watch connection.
constexpr std::size_t kMostUnconnected = 32;

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
  std::erase_if(neighbours_, [&](int rank) {
    if (std::ranges::find(ranks, rank) != ranks.end()) return false;
    if (unconnected_.size() < kMostUnconnected) unconnected_.add(rank);
    return true;
  });
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
  if (const auto found = other_queries_.find(point); found != other_queries_.end() && now < found->second.until) return;
  if (!polls_.try_emplace(point, Poll{.members = members, .left = timeout_, .last = last}).second) return;
  forward(begin_message(Kind::question, point, rank_).take(), rank_);
  record_answer(point, rank_, Progress::reached, unconnected_, slowest_round_trip(rank_));
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
    case Kind::question: return receive_question(from, point, asker, bytes, now);
    case Kind::answer: {
      if (asker != rank_) return send_towards(asker, std::string(bytes));
      const int rank = message.small_number();
      const auto progress = message.number() == 0 ? Progress::reached : Progress::behind;
      const auto unreachable = message.ranks();
      const auto round_trip = message.number();
      require(is_rank(rank) && are_ranks(unreachable) &&
              round_trip <= static_cast<std::uint64_t>(kLongestRoundTrip.count()));
      return record_answer(point, rank, progress, unreachable, std::chrono::milliseconds(round_trip));
    }
    case Kind::superseded: {
      if (asker != rank_) return send_towards(asker, std::string(bytes));
      const int lower = message.small_number();
      require(is_rank(lower));
      if (polls_.erase(point) > 0) other_queries_.try_emplace(point, Other{lower, now + 2 * timeout_});
      return;
    }
    case Kind::verdict: {
      if (const auto found = other_queries_.find(point);
          found != other_queries_.end() && found->second.asker == asker) {
        other_queries_.erase(found);
      }
      Verdict verdict{point, asker, message.ranks(), message.ranks(), message.small_number(), message.number() != 0};
      require(are_ranks(verdict.silent) && are_ranks(verdict.behind));
      verdicts_.push_back(std::move(verdict));
      return forward(std::string(bytes), from);
    }
  }
}

void MissingRankQuery::receive_question(int from, const ProgressPoint& point, int asker, std::string_view bytes,
                                        Clock::time_point now) {
  if (const int lower = lower_asker(point, asker, now); lower >= 0) {
    auto superseded = begin_message(Kind::superseded, point, asker);
    superseded.signed_number(lower);
    return send_towards(asker, superseded.take());
  }
  polls_.erase(point);
  const auto known = other_queries_.find(point);
  const bool answered = known != other_queries_.end() && known->second.asker == asker && now < known->second.until;
  // The verdict comes here, too, unless the rank that asked is lost before.
  other_queries_[point] = {asker, now + 2 * timeout_};
  forward(std::string(bytes), from);
  const auto round_trip = slowest_round_trip(from);
  if (answered && round_trip == std::chrono::milliseconds(0)) return;
  auto answer = begin_message(Kind::answer, point, asker);
  answer.signed_number(rank_);
  answer.number(static_cast<std::uint64_t>(how_far_(point)));
  answer.ranks(unconnected_);
  answer.number(static_cast<std::uint64_t>(round_trip.count()));
  send_towards(asker, answer.take());
}

// Returns the rank below `asker` whose query for the same point is in progress here, or −1.
int MissingRankQuery::lower_asker(const ProgressPoint& point, int asker, Clock::time_point now) const {
  if (polls_.contains(point)) return rank_ < asker ? rank_ : -1;
  const auto found = other_queries_.find(point);
  return found != other_queries_.end() && now < found->second.until && found->second.asker < asker ? found->second.asker
                                                                                                   : -1;
}

void MissingRankQuery::look(Clock::time_point now) {
  const auto passed = std::clamp<Clock::duration>(now - looked_, Clock::duration::zero(), timeout_ / 8);
  looked_ = now;
  std::erase_if(other_queries_, [&](const auto& each) { return each.second.until <= now; });
  for (auto& [point, poll] : polls_) {
    poll.left -= passed;
    if (poll.left > Clock::duration::zero()) continue;
    auto& own = poll.round_trips[rank_];
    own = std::max(own, slowest_round_trip(rank_));
  }
  std::erase_if(polls_, [&](const auto& each) {
    const bool over = each.second.is_over();
    if (over) finish(each.first, each.second);
    return over;
  });
  // A connection that is slower than before shows it only while a message is on its way. Ranks answer a further
  // question if they have such a connection.
  for (auto& [point, poll] : polls_) {
    if (!round_trip_ || poll.asked - poll.left < timeout_ / 2) continue;
    poll.asked = poll.left;
    forward(begin_message(Kind::question, point, rank_).take(), rank_);
  }
}

bool MissingRankQuery::Poll::is_over() const {
  auto all = left;
  for (const auto& [rank, time] : round_trips) all += time;
  return all <= Clock::duration::zero();
}

// Returns the time of the slowest connection to a neighbour other than `except`. It is 0 if that is not slow: the
// timeout has room for ordinary times, which would add up to minutes for a thousand ranks.
std::chrono::milliseconds MissingRankQuery::slowest_round_trip(int except) const {
  using std::chrono::milliseconds;
  milliseconds slowest{0};
  for (const int rank : neighbours_) {
    if (round_trip_ && rank != except) slowest = std::max(slowest, round_trip_(rank));
  }
  return slowest < timeout_ / 2 ? milliseconds(0) : std::min(slowest, kLongestRoundTrip);
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

void MissingRankQuery::record_answer(const ProgressPoint& point, int rank, Progress progress,
                                     const RankSet& unreachable, std::chrono::milliseconds round_trip) {
  const auto found = polls_.find(point);
  if (found == polls_.end()) return;
  auto& poll = found->second;
  poll.answered.add(rank);
  if (progress == Progress::behind) poll.behind.add(rank);
  poll.round_trips[rank] = std::max(poll.round_trips[rank], round_trip);
  poll.unreachable.add(unreachable);
  auto others = poll.members;
  others.remove(poll.answered);
  if (!others.empty()) return;
  finish(point, poll);
  polls_.erase(found);
}

// Several ranks on the way to a member may be without an answer. Only the nearest of them counts as silent, because
// nothing is known about those behind it.
void MissingRankQuery::finish(const ProgressPoint& point, const Poll& poll) {
  RankSet silent;
  auto others = poll.members;
  others.remove(poll.answered);
  for (int rank : others.ranks()) {
    for (int next = next_hop(rank, rank_); !poll.answered.contains(next); next = next_hop(rank, rank_)) rank = next;
    if (!poll.unreachable.contains(rank)) silent.add(rank);
  }
  Verdict verdict{.point = point, .asker = rank_, .silent = {}, .behind = {}, .last = poll.last};
  auto blamed = poll.behind;
  blamed.add(silent);
  std::size_t listed = 0;
  for (const int rank : blamed.ranks()) {
    const bool is_silent = silent.contains(rank);
    if (!is_silent && !poll.members.contains(rank)) continue;
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
  message.number(verdict.last ? 1 : 0);
  forward(message.take(), rank_);
  verdicts_.push_back(std::move(verdict));
}

}  // namespace perseus
