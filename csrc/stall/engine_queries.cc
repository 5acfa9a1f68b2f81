#include "stall/engine_queries.h"

namespace perseus {
namespace {

// Engines answer at once, but on an overloaded machine one may not run for a while.
constexpr std::chrono::milliseconds kAnswerTimeout{3000};

}  // namespace

EngineQueries::EngineQueries(const Tree& tree, ControlChannel& control,
                             std::function<bool(const std::string&)> has_submitted)
    : control_(control),
      protocol_(
          tree.rank, tree.parents,
          [has_submitted = std::move(has_submitted)](const ProgressPoint& point) {
            return has_submitted(point.name) ? Progress::reached : Progress::behind;
          },
          kAnswerTimeout) {
  everybody_.add_run({0, tree.size()});
}

void EngineQueries::ask(std::string name, Answer answer) {
  const std::scoped_lock lock(mutex_);
  new_.emplace_back(std::move(name), std::move(answer));
}

// Also completes queries whose answers came with the messages of an earlier cycle.
void EngineQueries::progress(Clock::time_point now) {
  Queries coming;
  {
    const std::scoped_lock lock(mutex_);
    coming = std::exchange(new_, {});
  }
  for (auto& query : coming) {
    protocol_.ask({.name = query.first}, everybody_, now);
    open_.push_back(std::move(query));
  }
  protocol_.look(now);
  for (auto& message : protocol_.take_messages()) control_.send(message.to, std::move(message.bytes));
  for (auto& verdict : protocol_.take_verdicts()) {
    verdict.silent.add(verdict.behind);
    std::erase_if(open_, [&](const auto& query) {
      if (query.first != verdict.point.name) return false;
      query.second(verdict.silent);
      return true;
    });
  }
}

}  // namespace perseus
