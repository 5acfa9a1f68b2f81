#include "engine/stall_reporter.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace perseus {
namespace {

// Engines answer at once, but on an overloaded machine one may not run for a while.
constexpr std::chrono::milliseconds kAnswerTimeout{3000};

}  // namespace

StallReporter::StallReporter(const Tree& tree, ControlChannel& control, PendingWork& pending,
                             PointToPoint& point_to_point, std::shared_ptr<EngineProgress> progress)
    : tree_(tree),
      control_(control),
      pending_(pending),
      point_to_point_(point_to_point),
      progress_(std::move(progress)),
      protocol_(
          tree_.rank, tree_.parents,
          [this](const ProgressPoint& point) {
            return pending_.contains(point.name) ? Progress::reached : Progress::behind;
          },
          kAnswerTimeout) {}

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
    std::vector<int> everybody(tree_.world_ranks.size());
    std::iota(everybody.begin(), everybody.end(), 0);
    protocol_.ask({.name = query->name}, everybody, now);
    open_.push_back(std::move(query));
  }
  protocol_.look(now);
  for (auto& message : protocol_.take_messages()) control_.send(message.to, std::move(message.bytes));
  for (const auto& verdict : protocol_.take_verdicts()) {
    std::erase_if(open_, [&](const std::shared_ptr<Query>& query) {
      if (query->name != verdict.point.name) return false;
      std::ranges::merge(verdict.silent, verdict.behind, std::back_inserter(query->missing));
      query->completion.finish({});
      return true;
    });
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
