#include "bootstrap/liveness.h"

#include <utility>

namespace perseus {

void Liveness::report_lost(int rank, const std::string& text) {
  std::scoped_lock calling(calling_);
  std::vector<std::function<void()>> wakes;
  {
    std::scoped_lock lock(mutex_);
    if (lost_.load(std::memory_order_relaxed)) return;
    text_ = "rank " + std::to_string(rank) + " " + text;
    lost_.store(true, std::memory_order_release);
    wakes = std::move(wakes_);
  }
  for (const auto& wake : wakes) wake();
}

Status Liveness::status() const {
  std::scoped_lock lock(mutex_);
  return any_lost() ? Status(ErrorKind::peer_lost, text_) : Status();
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

void Liveness::forget_wakes() {
  std::scoped_lock lock(calling_, mutex_);
  wakes_.clear();
}

}  // namespace perseus
