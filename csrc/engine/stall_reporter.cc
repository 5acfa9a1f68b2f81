#include "engine/stall_reporter.h"

#include <utility>

namespace perseus {

StallReporter::StallReporter(const Tree& tree, ControlChannel& control, PendingWork& pending,
                             PointToPoint& point_to_point, std::shared_ptr<EngineProgress> progress)
    : tree_(tree),
      control_(control),
      pending_(pending),
      point_to_point_(point_to_point),
      progress_(std::move(progress)),
      protocol_(tree_, [this](const std::string& name) { return pending_.contains(name); }) {}

std::shared_ptr<StallReporter::Query> StallReporter::ask(std::string name) {
  auto query = std::make_shared<Query>();
  query->name = std::move(name);
  const std::scoped_lock lock(mutex_);
  new_.push_back(query);
  return query;
}

// Also completes queries whose answers came with the messages of an earlier cycle.
void StallReporter::progress_queries(Clock::time_point now) {
  std::vector<std::shared_ptr<Query>> coming;
  {
    const std::scoped_lock lock(mutex_);
    coming = std::exchange(new_, {});
  }
  for (auto& query : coming) {
    const auto number = next_query_++;
    protocol_.ask(number, query->name, now);
    open_[number] = std::move(query);
  }
  protocol_.look(now);
  for (auto& message : protocol_.take_messages()) control_.send(message.to, std::move(message.bytes));
  for (auto& result : protocol_.take_results()) {
    const auto found = open_.find(result.question);
    if (found == open_.end()) continue;
    const auto query = std::move(found->second);
    open_.erase(found);
    query->missing = std::move(result.missing);
    query->completion.finish({});
  }
}

void StallReporter::report_waiting(Clock::time_point now) {
  auto label = pending_.any_label();
  auto operation = label.empty() ? point_to_point_.awaited() : nullptr;
  if (label.empty() && !operation) {
    quiet_since_ = {};
  } else if (quiet_since_ == Clock::time_point{} || operation != awaited_) {
    quiet_since_ = now;
  } else {
    EngineProgress::Wait wait{std::move(label), quiet_since_};
    if (operation) {
      wait.from = tree_.world_ranks[static_cast<std::size_t>(operation->peer)];
      wait.label = "a message from rank " + std::to_string(wait.from);
    }
    progress_->set_waiting(std::move(wait));
    reported_waiting_ = true;
  }
  awaited_ = std::move(operation);
}

void StallReporter::clear_waiting(bool decided) {
  if (!decided && (!awaited_ || point_to_point_.awaited() == awaited_)) return;
  quiet_since_ = {};
  awaited_ = nullptr;
  if (std::exchange(reported_waiting_, false)) progress_->set_waiting({});
}

}  // namespace perseus
