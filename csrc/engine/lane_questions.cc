// Lane's third part: who has not come, and whether anybody decides.
#include <utility>

#include "engine/lane.h"

namespace perseus {

std::optional<std::vector<int>> Lane::missing(const std::string& name, Clock::time_point until) {
  auto question = std::make_shared<Question>();
  question->name = name;
  {
    std::scoped_lock lock(questions_mutex_);
    asked_questions_.push_back(question);
  }
  wake();
  wait(question->completion, true, until);
  if (!question->completion.done() || !question->completion.status().ok()) return std::nullopt;
  std::vector<int> ranks;
  for (const int rank : question->missing) ranks.push_back(tree_.world_ranks[static_cast<std::size_t>(rank)]);
  return ranks;
}

// Also hears what has come of it: results are taken after the messages of an earlier cycle.
void Lane::attend_roll_call(Clock::time_point now) {
  std::vector<std::shared_ptr<Question>> asked;
  {
    std::scoped_lock lock(questions_mutex_);
    asked = std::exchange(asked_questions_, {});
  }
  for (auto& question : asked) {
    const auto number = next_question_++;
    roll_call_.ask(number, question->name, now);
    questions_[number] = std::move(question);
  }
  roll_call_.look(now);
  for (auto& message : roll_call_.take_messages()) link_.control->send(message.to, std::move(message.bytes));
  for (auto& result : roll_call_.take_results()) {
    const auto found = questions_.find(result.question);
    if (found == questions_.end()) continue;
    const auto question = std::move(found->second);
    questions_.erase(found);
    question->missing = std::move(result.missing);
    question->completion.finish({});
  }
}

// Work that is not decided on, or a message that does not come, while nothing else is: whoever is to decide, or to
// send, may be stopped.
void Lane::tell_waiting(Clock::time_point now) {
  auto letter = pending_.empty() ? letters_.awaited() : nullptr;
  if (pending_.empty() && !letter) {
    quiet_since_ = {};
  } else if (quiet_since_ == Clock::time_point{} || letter != awaited_) {
    quiet_since_ = now;
  } else {
    Underway::Wait wait{{}, quiet_since_};
    if (letter) {
      wait.from = tree_.world_ranks[static_cast<std::size_t>(letter->peer)];
      wait.label = "a message from rank " + std::to_string(wait.from);
    } else {
      wait.label = pending_.begin()->second->request.label();
    }
    options_.underway->set_waiting(std::move(wait));
    told_waiting_ = true;
  }
  awaited_ = std::move(letter);
}

// Once what was waited for has come.
void Lane::forget_waiting() {
  quiet_since_ = {};
  awaited_ = nullptr;
  if (std::exchange(told_waiting_, false)) options_.underway->set_waiting({});
}

}  // namespace perseus
