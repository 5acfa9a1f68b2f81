// Which peer was lost, known to every wait of this process the moment somebody finds out.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"

namespace perseus {

class Liveness {
 public:
  // The first report wins. `text` says which rank and how it was noticed. Any thread.
  void report_lost(int rank, const std::string& text);

  // Cheap enough for a wait loop.
  bool any_lost() const { return lost_.load(std::memory_order_acquire); }

  // ErrorKind::peer_lost with the first report's text, or ok.
  Status status() const;

  // Calls `wake` once somebody is reported lost (at once if that has happened). Used to end sleeps.
  void on_lost(std::function<void()> wake);

  // From now on nobody is called: what would be woken is going away.
  void forget_wakes();

 private:
  std::atomic<bool> lost_{false};
  std::mutex calling_;        // held while the wakes are called, so that forget_wakes() waits for them
  mutable std::mutex mutex_;  // guards the rest
  std::string text_;
  std::vector<std::function<void()>> wakes_;
};

}  // namespace perseus
