#include "control/inquiry.h"

#include <algorithm>

#include "base/error.h"
#include "control/wire.h"

namespace perseus {
namespace {

// Of those to blame, so that a verdict fits into what a watch can say.
constexpr std::size_t kMostNamed = 16, kMostUnreachable = 32;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Writer begin_message(std::uint8_t kind, const WorkPlace& place, int asker) {
  Writer to;
  to.number(kind);
  to.number(place.lane);
  to.signed_number(place.number);
  to.signed_number(asker);
  return to;
}

}  // namespace

void Inquiry::ask(const WorkPlace& place, const std::vector<int>& members, Clock::time_point now, bool last) {
  if (const auto found = others_.find(place); found != others_.end() && now < found->second) return;
  const auto [poll, is_new] = polls_.try_emplace(place, Poll{members, {}, {}, now + patience_, last});
  if (!is_new) return;
  spread(begin_message(static_cast<std::uint8_t>(Kind::question), place, rank_).take(), rank_);
  note(place, rank_, Progress::reached, missing_neighbours());
}

void Inquiry::hear(int from, std::string_view bytes, Clock::time_point now) {
  Reader message(bytes);
  const auto kind = message.number();
  const WorkPlace place{message.number(), message.signed_number()};
  const int asker = message.small_number();
  if (kind > static_cast<std::uint64_t>(Kind::verdict) || asker < 0 || asker >= static_cast<int>(parents_.size())) {
    throw Error(ErrorKind::transport, "a question about a collective makes no sense");
  }
  switch (static_cast<Kind>(kind)) {
    case Kind::question: {
      // Its verdict will be heard here, too; where it is not, the asker itself was lost on the way.
      others_[place] = now + 2 * patience_;
      auto answer = begin_message(static_cast<std::uint8_t>(Kind::answer), place, asker);
      answer.signed_number(rank_);
      answer.number(static_cast<std::uint64_t>(how_far_(place)));
      answer.numbers(missing_neighbours());
      send_towards(asker, answer.take());
      return spread(std::string(bytes), from);
    }
    case Kind::answer: {
      if (asker != rank_) return send_towards(asker, std::string(bytes));
      const int rank = message.small_number();
      const auto progress = message.number() == 0 ? Progress::reached : Progress::behind;
      return note(place, rank, progress, message.numbers());
    }
    case Kind::verdict: {
      others_.erase(place);
      Verdict verdict{
          place, asker, message.numbers(), message.numbers(), message.small_number(), message.number() != 0};
      verdicts_.push_back(std::move(verdict));
      return spread(std::string(bytes), from);
    }
  }
}

void Inquiry::look(Clock::time_point now) {
  std::erase_if(others_, [&](const auto& each) { return each.second <= now; });
  std::erase_if(polls_, [&](const auto& each) {
    const bool over = each.second.until <= now;
    if (over) end(each.first, each.second);
    return over;
  });
}

// To all neighbours but the one it came from.
void Inquiry::spread(const std::string& bytes, int from) {
  for (const int rank : neighbours_) {
    if (rank != from) outgoing_.push_back({rank, bytes});
  }
}

void Inquiry::send_towards(int rank, std::string bytes) {
  outgoing_.push_back({next_hop(rank_, rank), std::move(bytes)});
}

// In the tree: up, unless `to` is below.
int Inquiry::next_hop(int from, int to) const {
  for (int at = to; at >= 0; at = parents_[static_cast<std::size_t>(at)]) {
    if (parents_[static_cast<std::size_t>(at)] == from) return at;
  }
  return parents_[static_cast<std::size_t>(from)];
}

std::vector<int> Inquiry::missing_neighbours() const {
  std::vector<int> missing;
  for (int rank = 0; rank < static_cast<int>(parents_.size()); ++rank) {
    const bool adjacent =
        parents_[static_cast<std::size_t>(rank)] == rank_ || parents_[static_cast<std::size_t>(rank_)] == rank;
    if (adjacent && !contains(neighbours_, rank) && missing.size() < kMostUnreachable) missing.push_back(rank);
  }
  return missing;
}

void Inquiry::note(const WorkPlace& place, int rank, Progress progress, const std::vector<int>& unreachable) {
  const auto found = polls_.find(place);
  if (found == polls_.end()) return;
  auto& poll = found->second;
  poll.answers[rank] = progress;
  poll.unreachable.insert(poll.unreachable.end(), unreachable.begin(), unreachable.end());
  const bool all =
      std::all_of(poll.members.begin(), poll.members.end(), [&](int member) { return poll.answers.contains(member); });
  if (!all) return;
  end(place, poll);
  polls_.erase(found);
}

void Inquiry::end(const WorkPlace& place, const Poll& poll) {
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
               hides(rank, poll.members)) {
      blame(verdict.silent, rank);
    }
  }
  auto message = begin_message(static_cast<std::uint8_t>(Kind::verdict), place, rank_);
  message.numbers(verdict.silent);
  message.numbers(verdict.behind);
  message.signed_number(verdict.more);
  message.number(verdict.last ? 1 : 0);
  spread(message.take(), rank_);
  verdicts_.push_back(std::move(verdict));
}

// Whether a rank is a member, or one has to be asked through it.
bool Inquiry::hides(int rank, const std::vector<int>& members) const {
  return std::any_of(members.begin(), members.end(), [&](int member) {
    for (int at = member; at != rank_ && at >= 0; at = next_hop(at, rank_)) {
      if (at == rank) return true;
    }
    return false;
  });
}

}  // namespace perseus
