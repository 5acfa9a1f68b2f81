// Remembers the work that is queued on a device stream, and finds work that is not done in time.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "device/device.h"

namespace perseus {

class QueuedWork {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit`: how long work may be queued until it is done; 0: without end.
  explicit QueuedWork(std::chrono::milliseconds limit) : limit_(limit) {}

  // Adds work that is done once the stream has reached `done`.
  void add(std::string label, std::shared_ptr<DeviceEvent> done) {
    if (limit_.count() > 0) queue_.push_back({std::move(label), std::move(done), Clock::now()});
  }

  // Returns the label of the first work that is not done within the limit, if any. Forgets work that is done. Throws
  // the device's Error.
  std::optional<std::string> overdue(Device& device) {
    while (!queue_.empty() && device.is_done(*queue_.front().done)) queue_.pop_front();
    if (queue_.empty() || Clock::now() - queue_.front().since < limit_) return std::nullopt;
    return queue_.front().label;
  }

 private:
  struct Entry {
    std::string label;
    std::shared_ptr<DeviceEvent> done;
    Clock::time_point since;
  };

  std::chrono::milliseconds limit_;
  std::deque<Entry> queue_;  // in the order of the stream
};

}  // namespace perseus
