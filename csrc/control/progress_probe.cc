#include "control/progress_probe.h"

#include <algorithm>

#include "base/error.h"
#include "control/serialization.h"

namespace perseus {
namespace {

// Limits on the ranks in one message, so that a verdict fits into a message of a watch connection.
constexpr std::size_t kMostNamed = 16, kMostUnreachable = 32;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Writer begin_message(std::uint8_t kind, const ProgressPoint& place, int asker) {
  Writer to;
  to.number(kind);
  to.number(place.engine);
  to.signed_number(place.number);
  to.signed_number(asker);
  return to;
}

}  // namespace

void ProgressProbe::ask(const ProgressPoint& place, const std::vector<int>& members, Clock::time_point now, bool last) {
  if (const auto found = other_probes_.find(place); found != other_probes_.end() && now < found->second) return;
  const auto [poll, is_new] = polls_.try_emplace(place, Poll{members, {}, {}, now + timeout_, last});
  if (!is_new) return;
  forward(begin_message(static_cast<std::uint8_t>(Kind::question), place, rank_).take(), rank_);
  record_answer(place, rank_, Progress::reached, missing_neighbours());
}

void ProgressProbe::hear(int from, std::string_view bytes, Clock::time_point now) {
  Reader message(bytes);
  const auto kind = message.number();
  const ProgressPoint place{message.number(), message.signed_number()};
  const int asker = message.small_number();
  if (kind > static_cast<std::uint64_t>(Kind::verdict) || asker < 0 || asker >= static_cast<int>(parents_.size())) {
    throw Error(ErrorKind::transport,
                "progress probe: a message from another rank is malformed; check that all ranks run the same version "
                "of perseus_like");
  }
  switch (static_cast<Kind>(kind)) {
    case Kind::question: {
      // The verdict comes here, too, unless the rank that asked is lost before.
      other_probes_[place] = now + 2 * timeout_;
      auto answer = begin_message(static_cast<std::uint8_t>(Kind::answer), place, asker);
      answer.signed_number(rank_);
      answer.number(static_cast<std::uint64_t>(how_far_(place)));
      answer.numbers(missing_neighbours());
      send_towards(asker, answer.take());
      return forward(std::string(bytes), from);
    }
    case Kind::answer: {
      if (asker != rank_) return send_towards(asker, std::string(bytes));
      const int rank = message.small_number();
      const auto progress = message.number() == 0 ? Progress::reached : Progress::behind;
      return record_answer(place, rank, progress, message.numbers());
    }
    case Kind::verdict: {
      other_probes_.erase(place);
      Verdict verdict{
          place, asker, message.numbers(), message.numbers(), message.small_number(), message.number() != 0};
      verdicts_.push_back(std::move(verdict));
      return forward(std::string(bytes), from);
    }
  }
}

void ProgressProbe::look(Clock::time_point now) {
  std::erase_if(other_probes_, [&](const auto& each) { return each.second <= now; });
  std::erase_if(polls_, [&](const auto& each) {
    const bool over = each.second.until <= now;
    if (over) finish(each.first, each.second);
    return over;
  });
}

// Sends to all neighbours except `from`.
void ProgressProbe::forward(const std::string& bytes, int from) {
  for (const int rank : neighbours_) {
    if (rank != from) outgoing_.push_back({rank, bytes});
  }
}

void ProgressProbe::send_towards(int rank, std::string bytes) {
  outgoing_.push_back({next_hop(rank_, rank), std::move(bytes)});
}

// Returns the next rank of the route in the tree: a child if `to` is below it, else the parent.
int ProgressProbe::next_hop(int from, int to) const {
  for (int at = to; at >= 0; at = parents_[static_cast<std::size_t>(at)]) {
    if (parents_[static_cast<std::size_t>(at)] == from) return at;
  }
  return parents_[static_cast<std::size_t>(from)];
}

std::vector<int> ProgressProbe::missing_neighbours() const {
  std::vector<int> missing;
  for (int rank = 0; rank < static_cast<int>(parents_.size()); ++rank) {
    const bool adjacent =
        parents_[static_cast<std::size_t>(rank)] == rank_ || parents_[static_cast<std::size_t>(rank_)] == rank;
    if (adjacent && !contains(neighbours_, rank) && missing.size() < kMostUnreachable) missing.push_back(rank);
  }
  return missing;
}

void ProgressProbe::record_answer(const ProgressPoint& place, int rank, Progress progress,
                                  const std::vector<int>& unreachable) {
  const auto found = polls_.find(place);
  if (found == polls_.end()) return;
  auto& poll = found->second;
  poll.answers[rank] = progress;
  poll.unreachable.insert(poll.unreachable.end(), unreachable.begin(), unreachable.end());
  const bool all =
      std::all_of(poll.members.begin(), poll.members.end(), [&](int member) { return poll.answers.contains(member); });
  if (!all) return;
  finish(place, poll);
  polls_.erase(found);
}

void ProgressProbe::finish(const ProgressPoint& place, const Poll& poll) {
  Verdict verdict{place, rank_, {}, {}, 0, poll.last};
  const auto blame = [&](std::vector<int>& ranks, int rank) {
    if (verdict.silent.size() + verdict.behind.size() < kMostNamed) {
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
  auto message = begin_message(static_cast<std::uint8_t>(Kind::verdict), place, rank_);
  message.numbers(verdict.silent);
  message.numbers(verdict.behind);
  message.signed_number(verdict.more);
  message.number(verdict.last ? 1 : 0);
  forward(message.take(), rank_);
  verdicts_.push_back(std::move(verdict));
}

// Returns true if the rank is a member or lies on the route to one.
bool ProgressProbe::is_on_route(int rank, const std::vector<int>& members) const {
  return std::any_of(members.begin(), members.end(), [&](int member) {
    for (int at = member; at != rank_ && at >= 0; at = next_hop(at, rank_)) {
      if (at == rank) return true;
    }
    return false;
  });
}

}  // namespace perseus
