// Lets a thread sleep until another thread, of this process or another, notifies it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

namespace perseus {

// The threads that may sleep at a doorbell. Each sleeps on its own futex bit, so that a notification wakes the thread
// that drives the engine.
enum class Sleeper : std::uint32_t {
  none = 0,    // a thread is awake and polls, so that notify() needs no system call
  engine = 1,  // the communication thread
  caller = 2,  // a framework thread that waits for its handle and drives the engine meanwhile
  shared = 4,  // a communication thread of several engines, which sleeps at the ReadySet
};

class ReadySet;

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

  // From now on the communication thread sleeps at `set`, where this doorbell has `number`. If other processes notify
  // this doorbell, the set lies in the same segment. Call it once.
  void join(ReadySet& set, std::uint32_t number);
  // Returns the set that this doorbell has joined, or null. If another process owns the doorbell and is corrupted, the
  // address may be wrong.
  ReadySet* ready_set();

 private:
  void wake(std::uint32_t sleepers);

  std::atomic<std::uint32_t> notifications_{0};
  std::atomic<std::uint32_t> sleeper_{0};
  std::atomic<std::uint32_t> number_{0};
  std::atomic<std::int64_t> set_offset_{0};  // bytes from this object to the ReadySet; 0: none
};

// The doorbells that were notified while their common thread slept or was busy. It works in memory shared between
// processes, as a doorbell does. Its cost does not depend on how many doorbells have joined it.
class ReadySet {
 public:
  // Doorbells that exceed this number share numbers.
  static constexpr std::uint32_t kNumbers = 64 * 64;

  // Adds a number below kNumbers, and notifies the doorbell. Any thread, any process.
  void add(std::uint32_t number) {
    const auto word = number / 64 % words_.size();
    words_[word].fetch_or(std::uint64_t{1} << (number % 64), std::memory_order_seq_cst);
    summary_.fetch_or(std::uint64_t{1} << word, std::memory_order_seq_cst);
    doorbell_.notify();
  }

  // Removes all numbers, and calls `call` for each. One thread at a time.
  template <class Call>
  void take(const Call& call) {
    if (summary_.load(std::memory_order_relaxed) == 0) return;
    for (auto words = summary_.exchange(0, std::memory_order_seq_cst); words != 0; words &= words - 1) {
      const auto word = static_cast<std::uint32_t>(std::countr_zero(words));
      for (auto bits = words_[word].exchange(0, std::memory_order_seq_cst); bits != 0; bits &= bits - 1) {
        call(word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
      }
    }
  }

  // The doorbell at which the common thread sleeps.
  Doorbell& doorbell() { return doorbell_; }

 private:
  Doorbell doorbell_;
  std::atomic<std::uint64_t> summary_{0};  // has a bit for each word that is not 0
  std::array<std::atomic<std::uint64_t>, kNumbers / 64> words_{};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace perseus
