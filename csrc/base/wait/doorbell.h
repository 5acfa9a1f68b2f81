// Lets a thread sleep until another thread, of this process or another, notifies it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace perseus {

// The threads that may sleep at a doorbell. Each sleeps on its own futex bit, so that a notification wakes the thread
// that drives the engine.
enum class Sleeper : std::uint32_t {
  none = 0,    // a thread is awake and polls, so that notify() needs no system call
  engine = 1,  // the communication thread
  caller = 2,  // a framework thread that waits for its handle and drives the engine meanwhile
};

// A counter of notifications on which threads sleep. It works in memory shared between processes: it has no pointers,
// and all-zero bytes are a valid initial state. To sleep without losing a notification, call seen = notifications(),
// look for work, and call wait(seen, …).
class Doorbell {
 public:
  // Notifies the thread that polls or sleeps here that there is work. Any thread, any process.
  void notify();

  std::uint32_t notifications() const { return notifications_.load(std::memory_order_seq_cst); }

  // Sleeps until a notification later than `seen`, but at most for `limit`. Returns at once if one has come already.
  void wait(std::uint32_t seen, Sleeper who, std::chrono::microseconds limit);

  // States that a thread polls from now on, so that notifications wake no thread.
  void begin_polling() { sleeper_.store(static_cast<std::uint32_t>(Sleeper::none), std::memory_order_seq_cst); }

  // States that the caller stops polling. Notifications later than `seen` wake the sleeping communication thread.
  void hand_back(std::uint32_t seen);

 private:
  std::atomic<std::uint32_t> notifications_{0};
  std::atomic<std::uint32_t> sleeper_{0};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace perseus
