// Records the first lost peer, which ends every wait of this process.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace perseus {

// A lost rank and how it was lost.
struct Loss {
  int rank = 0;
  std::string text;      // how it was detected; follows the rank's name in texts
  bool cut_off = false;  // its whole host is cut off, so that the launcher may hang as well
  bool stalled = false;  // it may live, but did not respond in time
  bool gave_up = false;  // it lives and has reported that its session failed
};

// The record of lost ranks. Thread-safe, except for name_hosts().
class Liveness {
 public:
  // Adds host names to the texts; `hosts` is by rank. Call it in jobs with several hosts before the first report.
  void name_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  // Reports a lost rank. Only the first report counts.
  void report_lost(const Loss& loss);
  void report_lost(int rank, std::string text) { report_lost(Loss{rank, std::move(text)}); }

  // Adds a function that forwards a report to other processes. It is called before status() returns the loss: once this
  // process knows of the loss it may end, and the others would then learn only of its end. Returns the id for
  // remove_reporter().
  using Reporter = std::function<void(const Loss&)>;
  int add_reporter(Reporter reporter);
  void remove_reporter(int id);

  // Returns true once a rank is lost. Cheap enough for a wait loop.
  bool any_lost() const { return lost_.load(std::memory_order_acquire); }

  // Returns true if a host is cut off; see Loss.
  bool is_cut_off() const { return cut_off_.load(std::memory_order_acquire); }

  // Returns true if the process of the lost rank may live and take part in a later session.
  bool may_live() const { return may_live_.load(std::memory_order_acquire); }

  // Returns ErrorKind::peer_lost, or timed_out if the rank stalled, with the text of the first report; or ok.
  Status status() const;

  // Calls `wake` once a rank is reported lost, or at once if one is. Used to end sleeps.
  void on_lost(std::function<void()> wake);

  // Removes all functions of on_lost(), because what they would wake is being destroyed.
  void remove_wakes();

 private:
  std::atomic<bool> lost_{false}, cut_off_{false}, may_live_{false};
  std::vector<std::string> hosts_;
  std::mutex calling_mutex_;  // guards reporters_; held during their calls, so that remove_reporter() waits for them
  std::map<int, Reporter> reporters_;
  int next_reporter_ = 0;
  mutable std::mutex mutex_;  // guards the rest
  std::string text_;
  ErrorKind kind_ = ErrorKind::peer_lost;
  std::vector<std::function<void()>> wakes_;
};

}  // namespace perseus
