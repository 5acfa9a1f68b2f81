#include "bootstrap/watch/liveness.h"

#include <utility>

namespace perseus {

void Liveness::report_lost(const Loss& loss) {
  std::scoped_lock calling(calling_mutex_);
  if (any_lost()) return;
  for (const auto& [id, reporter] : reporters_) reporter(loss);
  const auto place = static_cast<std::size_t>(loss.rank);
  const auto host = place < hosts_.size() ? " on " + hosts_[place] : "";
  std::vector<std::function<void()>> wakes;
  {
    std::scoped_lock lock(mutex_);
    text_ = "rank " + std::to_string(loss.rank) + host + " " + loss.text;
    kind_ = loss.stalled ? ErrorKind::timed_out : ErrorKind::peer_lost;
    cut_off_.store(loss.cut_off, std::memory_order_release);
    may_live_.store(loss.stalled || loss.gave_up, std::memory_order_release);
    lost_.store(true, std::memory_order_release);
    wakes = std::move(wakes_);
  }
  for (const auto& wake : wakes) wake();
}

int Liveness::add_reporter(Reporter reporter) {
  std::scoped_lock calling(calling_mutex_);
  reporters_.emplace(next_reporter_, std::move(reporter));
  return next_reporter_++;
}

void Liveness::remove_reporter(int id) {
  std::scoped_lock calling(calling_mutex_);
  reporters_.erase(id);
}

Status Liveness::status() const {
  std::scoped_lock lock(mutex_);
  return any_lost() ? Status(kind_, text_) : Status();
}

void Liveness::on_lost(std::function<void()> wake) {
  {
    std::scoped_lock lock(mutex_);
    if (!any_lost()) {
      wakes_.push_back(std::move(wake));
      return;
    }
  }
  wake();
}

void Liveness::remove_wakes() {
  std::scoped_lock lock(calling_mutex_, mutex_);
  wakes_.clear();
}

}  // namespace perseus
