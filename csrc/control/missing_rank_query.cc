#include "control/missing_rank_query.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "control/serialization.h"

namespace perseus {

std::string MissingRankQuery::encode(const Message& message) {
  Writer to;
  to.number(static_cast<std::uint64_t>(message.kind));
  to.signed_number(message.asker);
  to.number(message.question);
  to.text(message.name);
  to.numbers(message.ranks);
  to.signed_number(message.from);
  return kMark + to.take();
}

MissingRankQuery::Message MissingRankQuery::decode(std::string_view bytes) {
  Reader from(bytes.substr(1));
  Message message;
  const auto kind = from.number();
  message.kind = static_cast<Kind>(kind);
  message.asker = from.small_number();
  message.question = from.number();
  message.name = from.text();
  message.ranks = from.numbers();
  message.from = from.small_number();
  if (kind > static_cast<std::uint64_t>(Kind::result) || !from.at_end()) {
    throw Error(ErrorKind::transport,
                "missing-rank query: a message from another rank is malformed; check that all ranks run the same "
                "version of perseus_like");
  }
  return message;
}

void MissingRankQuery::ask(std::uint64_t question, const std::string& name, Clock::time_point now) {
  Message message;
  message.asker = tree_.rank;
  message.question = question;
  message.name = name;
  if (tree_.is_root()) {
    start_poll(message, now);
  } else {
    send_up(message);
  }
}

void MissingRankQuery::hear(std::string_view bytes, Clock::time_point now) {
  auto message = decode(bytes);
  switch (message.kind) {
    case Kind::question:
      if (tree_.is_root()) {
        start_poll(message, now);
      } else {
        send_up(message);
      }
      return;
    case Kind::poll:
      send_down(message);
      message.kind = Kind::answer;
      message.from = tree_.rank;
      if (has_submitted_(message.name)) message.ranks.push_back(tree_.rank);
      send_up(message);
      return;
    case Kind::answer:
      if (tree_.is_root()) {
        record_answer({message.asker, message.question}, message.from, !message.ranks.empty());
      } else {
        send_up(message);
      }
      return;
    case Kind::result:
      send_down(message);
      deliver(message);
      return;
  }
}

void MissingRankQuery::send_down(const Message& message) {
  for (const int child : tree_.children) outgoing_.push_back({child, encode(message)});
}

void MissingRankQuery::start_poll(const Message& question, Clock::time_point now) {
  const Key key(question.asker, question.question);
  const auto ranks = static_cast<std::size_t>(tree_.size());
  polls_[key] = {question.name, std::vector<bool>(ranks), std::vector<bool>(ranks), now + timeout_};
  auto poll = question;
  poll.kind = Kind::poll;
  send_down(poll);
  record_answer(key, tree_.rank, has_submitted_(question.name));
}

void MissingRankQuery::record_answer(const Key& key, int rank, bool submitted) {
  const auto found = polls_.find(key);
  if (found == polls_.end() || rank < 0 || rank >= tree_.size()) return;
  auto& poll = found->second;
  poll.answered[static_cast<std::size_t>(rank)] = true;
  poll.submitted[static_cast<std::size_t>(rank)] = submitted;
  if (std::find(poll.answered.begin(), poll.answered.end(), false) != poll.answered.end()) return;
  finish(key, poll);
  polls_.erase(found);
}

void MissingRankQuery::look(Clock::time_point now) {
  std::erase_if(polls_, [&](const auto& each) {
    const bool over = each.second.until <= now;
    if (over) finish(each.first, each.second);
    return over;
  });
}

void MissingRankQuery::finish(const Key& key, const Poll& poll) {
  Message result;
  result.kind = Kind::result;
  result.asker = key.first;
  result.question = key.second;
  for (int rank = 0; rank < tree_.size(); ++rank) {
    if (!poll.submitted[static_cast<std::size_t>(rank)]) result.ranks.push_back(rank);
  }
  send_down(result);
  deliver(result);
}

void MissingRankQuery::deliver(const Message& result) {
  if (result.asker == tree_.rank) results_.push_back({result.question, result.ranks});
}

}  // namespace perseus
