// Records the timeline of this rank and writes it to a Chrome trace file.
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
#include "trace/json_array.h"

namespace perseus {

// Returns the file of a rank: `path` for rank 0, and for rank r "trace.rank<r>.json" if `path` is "trace.json".
std::string timeline_path(const std::string& path, int rank);

// The timeline of one process. While it is off, on() costs one load and a branch. While it is on, record() costs a lock
// and a copy, and a separate thread formats and writes the events within 20 ms.
class Timeline {
 public:
  Timeline() = default;
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Starts a timeline and ends a running one. If the running one writes the same file, it continues with the new
  // `mark_cycles`. Throws Error(invalid_argument) if the file cannot be written; a running timeline then continues.
  void start(const std::string& path, bool mark_cycles, const TraceIdentity& identity);

  // Writes the remaining events and closes the file. Does nothing if no timeline is running.
  void stop();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool marks_cycles() const { return marks_cycles_.load(std::memory_order_relaxed); }

  // Records events and leaves `events` empty. Any thread.
  void record(std::vector<TraceEvent>& events);
  void record(TraceEvent event);

 private:
  void finish();  // running_ must be locked
  void run();
  void write(const std::vector<TraceEvent>& events, std::int64_t dropped);

  std::mutex running_;  // guards start and stop against one another
  std::unique_ptr<JsonArrayFile> file_;
  std::unique_ptr<ChromeFormat> format_;
  std::thread writer_;
  bool is_full_ = false;  // used by the writer thread while it runs

  std::mutex mutex_;  // guards events_, dropped_ and stopping_
  std::condition_variable changed_;
  std::vector<TraceEvent> events_;
  std::int64_t dropped_ = 0;
  bool stopping_ = true;

  std::atomic<bool> on_{false};
  std::atomic<bool> marks_cycles_{false};
};

}  // namespace perseus
