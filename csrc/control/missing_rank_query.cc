#include "control/missing_rank_query.h"

#include <algorithm>

#include "base/error.h"
#include "control/serialization.h"

namespace perseus {
namespace {

// Limits the ranks in an answer, so that it fits into a message of a watch connection.
constexpr std::size_t kMostUnreachable = 32;

// A longer time in an answer is malformed.
constexpr std::chrono::milliseconds kLongestRoundTrip = std::chrono::hours(24);

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

MissingRankQuery::MissingRankQuery(int rank, std::vector<int> parents, HowFar how_far,
                                   std::chrono::milliseconds timeout, std::size_t most_listed, RoundTrip round_trip)
    : rank_(rank),
      parents_(std::move(parents)),
      how_far_(std::move(how_far)),
      timeout_(timeout),
      most_listed_(most_listed),
      round_trip_(std::move(round_trip)),
      neighbours_(adjacent()) {}

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

void MissingRankQuery::ask(const ProgressPoint& point, const std::vector<int>& members, Clock::time_point now,
                           bool last) {
  if (const auto found = other_queries_.find(point); found != other_queries_.end() && now < found->second.until) return;
  const auto [poll, is_new] = polls_.try_emplace(point, Poll{members, {}, {}, timeout_, last, {}});
  if (!is_new) return;
  forward(begin_message(Kind::question, point, rank_).take(), rank_);
  record_answer(point, rank_, Progress::reached, missing_neighbours(), slowest_round_trip(rank_));
}

void MissingRankQuery::receive(int from, std::string_view bytes, Clock::time_point now) {
  const auto require = [](bool is_well_formed) {
    if (is_well_formed) return;
    throw Error(ErrorKind::transport,
                "missing-rank query: a message from another rank is malformed; check that all ranks run the same "
                "version of perseus_like");
  };
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < static_cast<int>(parents_.size()); };
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
      const auto unreachable = message.numbers();
      const auto round_trip = message.number();
      require(round_trip <= static_cast<std::uint64_t>(kLongestRoundTrip.count()));
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
      Verdict verdict{
          point, asker, message.numbers(), message.numbers(), message.small_number(), message.number() != 0};
      require(std::ranges::all_of(verdict.silent, is_rank) && std::ranges::all_of(verdict.behind, is_rank));
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
  answer.numbers(missing_neighbours());
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

// Returns this rank's neighbours in the tree.
std::vector<int> MissingRankQuery::adjacent() const {
  std::vector<int> ranks;
  const int parent = parents_[static_cast<std::size_t>(rank_)];
  for (int rank = 0; rank < static_cast<int>(parents_.size()); ++rank) {
    if (parents_[static_cast<std::size_t>(rank)] == rank_ || parent == rank) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> MissingRankQuery::missing_neighbours() const {
  auto missing = adjacent();
  std::erase_if(missing, [&](int rank) { return contains(neighbours_, rank); });
  missing.resize(std::min(missing.size(), kMostUnreachable));
  return missing;
}

void MissingRankQuery::record_answer(const ProgressPoint& point, int rank, Progress progress,
                                     const std::vector<int>& unreachable, std::chrono::milliseconds round_trip) {
  const auto found = polls_.find(point);
  if (found == polls_.end()) return;
  auto& poll = found->second;
  poll.answers[rank] = progress;
  poll.round_trips[rank] = std::max(poll.round_trips[rank], round_trip);
  poll.unreachable.insert(poll.unreachable.end(), unreachable.begin(), unreachable.end());
  const bool all =
      std::all_of(poll.members.begin(), poll.members.end(), [&](int member) { return poll.answers.contains(member); });
  if (!all) return;
  finish(point, poll);
  polls_.erase(found);
}

void MissingRankQuery::finish(const ProgressPoint& point, const Poll& poll) {
  Verdict verdict{point, rank_, {}, {}, 0, poll.last};
  const auto blame = [&](std::vector<int>& ranks, int rank) {
    if (verdict.silent.size() + verdict.behind.size() < most_listed_) {
      ranks.push_back(rank);
    } else {
      ++verdict.more;
    }
  };
  for (int rank = 0; rank < static_cast<int>(parents_.size()); ++rank) {
    const auto answer = poll.answers.find(rank);
    if (answer != poll.answers.end()) {
      if (answer->second == Progress::behind && contains(poll.members, rank)) blame(verdict.behind, rank);
    } else if (poll.answers.contains(next_hop(rank, rank_)) && !contains(poll.unreachable, rank) &&
               is_on_route(rank, poll.members)) {
      blame(verdict.silent, rank);
    }
  }
  auto message = begin_message(Kind::verdict, point, rank_);
  message.numbers(verdict.silent);
  message.numbers(verdict.behind);
  message.signed_number(verdict.more);
  message.number(verdict.last ? 1 : 0);
  forward(message.take(), rank_);
  verdicts_.push_back(std::move(verdict));
}

// Returns true if the rank is a member or lies on the route to one.
bool MissingRankQuery::is_on_route(int rank, const std::vector<int>& members) const {
  return std::any_of(members.begin(), members.end(), [&](int member) {
    for (int at = member; at != rank_ && at >= 0; at = next_hop(at, rank_)) {
      if (at == rank) return true;
    }
    return false;
  });
}

}  // namespace perseus
