#include "trace/timeline.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/wait/thread.h"

namespace perseus {

namespace {

// The time for which events may stay in memory; a killed process loses them.
constexpr std::chrono::milliseconds kCollect{20};
// The most events in memory if the disk is slower than the events. An event takes some 150 bytes.
constexpr std::size_t kMostEvents = 1U << 20;

}  // namespace

std::string timeline_path(const std::string& path, int rank) {
  if (rank == 0) return path;
  const auto slash = path.rfind('/');
  const auto first = slash == std::string::npos ? 0 : slash + 1;
  auto dot = path.rfind('.');
  if (dot == std::string::npos || dot <= first) dot = path.size();
  return path.substr(0, dot) + ".rank" + std::to_string(rank) + path.substr(dot);
}

void Timeline::start(const std::string& path, bool mark_cycles, const TraceIdentity& identity) {
  std::scoped_lock starting(running_);
  const auto target = timeline_path(path, identity.rank);
  if (on_ && file_->path() == target) {
    marks_cycles_ = mark_cycles;
    return;
  }
  const auto now = TraceEvent::Clock::now();
  const auto epoch = std::chrono::system_clock::now().time_since_epoch();
  auto format = std::make_unique<ChromeFormat>(identity, now);
  auto file = std::make_unique<JsonArrayFile>(
      target, format->head(std::chrono::duration_cast<std::chrono::microseconds>(epoch).count()));
  finish();
  file_ = std::move(file);
  format_ = std::move(format);
  is_full_ = false;
  {
    std::scoped_lock lock(mutex_);
    events_.clear();
    dropped_ = 0;
    stopping_ = false;
  }
  writer_ = start_thread([this] { run(); });
  pthread_setname_np(writer_.native_handle(), "perseus-trace");
  marks_cycles_ = mark_cycles;
  on_ = true;
}

void Timeline::stop() {
  std::scoped_lock stopping(running_);
  finish();
}

void Timeline::finish() {
  if (!file_) return;
  on_ = false;
  marks_cycles_ = false;
  {
    std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  writer_.join();
  format_.reset();
  file_.reset();
}

void Timeline::record(std::vector<TraceEvent>& events) {
  bool first = false;
  {
    std::scoped_lock lock(mutex_);
    if (!stopping_) {
      const auto room = std::min(events.size(), kMostEvents - std::min(kMostEvents, events_.size()));
      first = events_.empty() && room > 0;
      dropped_ += static_cast<std::int64_t>(events.size() - room);
      std::move(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(room), std::back_inserter(events_));
    }
  }
  if (first) changed_.notify_one();
  events.clear();
}

void Timeline::record(TraceEvent event) {
  std::vector<TraceEvent> events;
  events.push_back(std::move(event));
  record(events);
}

void Timeline::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !events_.empty(); });
    // Many events share one write.
    changed_.wait_for(lock, kCollect, [this] { return stopping_; });
    const bool last = stopping_;
    auto events = std::exchange(events_, {});
    const auto dropped = std::exchange(dropped_, 0);
    lock.unlock();
    write(events, dropped);
    if (last) return;
    lock.lock();
  }
}

void Timeline::write(const std::vector<TraceEvent>& events, std::int64_t dropped) {
  if (events.empty() && dropped == 0) return;
  std::string elements;
  for (const auto& event : events) format_->add(event, elements);
  if (dropped > 0) elements += (elements.empty() ? "" : ",\n") + format_->dropped(dropped);
  // Writing stops at the first failure, because later events may belong to events that were not written.
  if (is_full_ || elements.empty() || file_->append(elements)) return;
  is_full_ = true;
  on_ = false;
  log(LogLevel::error, "the timeline ends here: " + file_->path() + " cannot be written any more; check the disk");
}

}  // namespace perseus
