// One word that lets a thread sleep until somebody, in this process or another, has something for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace perseus {

// Who may be asleep at a doorbell. The two sleep on different futex bits, so that a ring wakes the one that drives.
enum class Sleeper : std::uint32_t {
  none = 0,    // somebody is awake and polling: no system call is needed
  engine = 1,  // the lane's own thread
  caller = 2,  // a framework thread that waits for its handle and drives the lane meanwhile
};

// Usable in memory shared between processes: no pointers, all-zero is a valid fresh state.
// To sleep without losing a ring: seen = rings(); look for work; wait(seen, …).
class Doorbell {
 public:
  // Tells whoever polls or sleeps here that there is something to do. Any thread, any process.
  void ring();

  std::uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  // Sleeps until a ring later than `seen`, or `limit`. Returns at once if one has come already.
  void wait(std::uint32_t seen, Sleeper who, std::chrono::microseconds limit);

  // From now on a thread polls: rings need wake nobody.
  void attend() { sleeper_.store(static_cast<std::uint32_t>(Sleeper::none), std::memory_order_seq_cst); }

  // The caller stops polling and leaves the sleeping engine thread in charge; rings later than `seen` wake it.
  void hand_back(std::uint32_t seen);

 private:
  std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> sleeper_{0};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace perseus
