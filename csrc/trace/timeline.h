// The timeline of this rank: what happened when, as a Chrome trace in a file of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trace/chrome.h"
#include "trace/event.h"
#include "trace/json_array.h"

namespace perseus {

// Rank 0 writes to `path` itself, rank r to "trace.rank<r>.json" for "trace.json".
std::string timeline_path(const std::string& path, int rank);

// Off, it costs whoever asks on() one load and a branch. On, a record costs a lock and a copy; a thread of its own
// makes the text and writes it, 20 ms later at most.
class Timeline {
 public:
  Timeline() = default;
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Ends the one that is running, unless it is of this very file: that one goes on, with `mark_cycles` as it is now.
  // Throws Error(invalid_argument) where the file cannot be written; then what was running goes on.
  void start(const std::string& path, bool mark_cycles, const TraceIdentity& identity);

  // Writes the rest and closes the file. Nothing happens where none is running.
  void stop();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool marks_cycles() const { return marks_cycles_.load(std::memory_order_relaxed); }

  // Any thread. Leaves `events` empty.
  void record(std::vector<TraceEvent>& events);
  void record(TraceEvent event);

 private:
  void finish();  // under running_
  void run();
  void write(std::vector<TraceEvent> events, std::int64_t dropped);

  std::mutex running_;  // guards start and stop against one another
  std::unique_ptr<JsonArrayFile> file_;
  std::unique_ptr<ChromeFormat> format_;
  std::thread writer_;
  bool is_full_ = false;  // the writer's, while it runs

  std::mutex mutex_;  // guards events_, dropped_ and stopping_
  std::condition_variable changed_;
  std::vector<TraceEvent> events_;
  std::int64_t dropped_ = 0;
  bool stopping_ = true;

  std::atomic<bool> on_{false};
  std::atomic<bool> marks_cycles_{false};
};

}  // namespace perseus
