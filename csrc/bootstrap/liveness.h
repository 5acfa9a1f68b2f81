// Which peer was lost, known to every wait of this process the moment somebody finds out.
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

struct Loss {
  int rank = 0;
  std::string text;      // how it was noticed; follows the rank's name
  bool cut_off = false;  // a whole host is, so that launchers, too, may wait for what never comes
  bool stalled = false;  // it may live, and was waited for too long
  bool gave_up = false;  // it lives, and told that its session failed
};

class Liveness {
 public:
  // Texts name a rank's host, too: `hosts` by rank. For jobs of several hosts, before anybody reports.
  void name_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  // The first report wins. Any thread.
  void report_lost(const Loss& loss);
  void report_lost(int rank, std::string text) { report_lost(Loss{rank, std::move(text)}); }

  // `tell` passes a report on to other processes. It is called before the report is seen here: once this process knows,
  // it may end, and the others would hear of its end alone. Returns what forget_teller() takes.
  using Tell = std::function<void(const Loss&)>;
  int tell_first(Tell tell);
  void forget_teller(int id);

  // Cheap enough for a wait loop.
  bool any_lost() const { return lost_.load(std::memory_order_acquire); }

  // Whether a host is cut off: see Loss.
  bool is_cut_off() const { return cut_off_.load(std::memory_order_acquire); }

  // Returns true if the process of the lost rank may live, and take part in a later session.
  bool may_live() const { return may_live_.load(std::memory_order_acquire); }

  // ErrorKind::peer_lost, or timed_out where it stalled, with the first report's text; or ok.
  Status status() const;

  // Calls `wake` once somebody is reported lost (at once if that has happened). Used to end sleeps.
  void on_lost(std::function<void()> wake);

  // From now on nobody is called: what would be woken is going away.
  void forget_wakes();

 private:
  std::atomic<bool> lost_{false}, cut_off_{false}, may_live_{false};
  std::vector<std::string> hosts_;
  std::mutex calling_;  // guards tellers_, and is held while others are called, so that forgetting waits for them
  std::map<int, Tell> tellers_;
  int next_teller_ = 0;
  mutable std::mutex mutex_;  // guards the rest
  std::string text_;
  ErrorKind kind_ = ErrorKind::peer_lost;
  std::vector<std::function<void()>> wakes_;
};

}  // namespace perseus
