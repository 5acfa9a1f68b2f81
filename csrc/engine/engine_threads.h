// Runs the cycles of several engines on a few threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/wait/doorbell.h"
#include "engine/thread_policy.h"

namespace perseus {

// Names the calling thread, and prepares it for running cycles: binds it to a core, unless `core` is -1, and makes its
// short sleeps exact.
void prepare_engine_thread(const char* name, int core);

// An engine as EngineThreads sees it.
class ServedEngine {
 public:
  static constexpr std::chrono::microseconds kForever = std::chrono::hours(1);

  virtual ~ServedEngine() = default;
  virtual Doorbell& doorbell() = 0;
  // Makes one pass over everything that may have happened, and hands the doorbell back. Returns the time after which
  // the next pass is due without a notification; kForever or more: never. Never throws. One thread at a time.
  virtual std::chrono::microseconds serve() = 0;
};

// The threads that serve the engines of a session's process sets. One thread, the dispatcher, sleeps until an engine
// is notified or due, and serves it. Before it blocks in a collective, it makes an idle thread the dispatcher, and
// starts one if there is none. So engines cannot block one another, and the number of threads is that of the
// collectives that block at the same time, and one more.
class EngineThreads {
 public:
  using Clock = std::chrono::steady_clock;

  // Says why engines block one another from now on. Called once at most, on a thread that is about to block.
  using OnFailure = std::function<void(const std::string&)>;

  // `ready` is memory that can be reached by all processes that notify the engines' doorbells.
  EngineThreads(
      ReadySet& ready, int core, OnFailure on_failure = [](const std::string&) {})
      : ready_(ready), core_(core), on_failure_(std::move(on_failure)) {}
  // All engines have been removed.
  ~EngineThreads();
  EngineThreads(const EngineThreads&) = delete;
  EngineThreads& operator=(const EngineThreads&) = delete;

  // Serves an engine from now on. Throws Error(unavailable) if the process may not have a further thread.
  void add(ServedEngine& engine);
  // Blocks until no thread serves the engine any more. Idempotent. Not from serve().
  void remove(ServedEngine& engine);

  // The policy of all these threads.
  ThreadPolicy& policy() { return policy_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Entry;
  using DueTimes = std::multimap<Clock::time_point, Entry*>;
  struct Entry {
    ServedEngine& engine;
    std::uint32_t number;
    DueTimes::iterator due;
    bool is_served = false;    // by a thread now
    bool is_notified = false;  // while it is served
    bool is_removed = false;
  };

  void start();
  void run(std::list<std::thread>::iterator self);
  bool wait_until_dispatcher(Lock& lock);
  void dispatch(Lock& lock, ThreadPolicy::Applied& applied);
  void serve(Lock& lock, Entry& entry);
  void schedule(Entry& entry, Clock::time_point due);
  void replace_dispatcher();
  bool is_dispatcher() const { return dispatcher_ == std::this_thread::get_id(); }

  ReadySet& ready_;
  const int core_;
  const OnFailure on_failure_;
  ThreadPolicy policy_{/*several_hosts=*/true};

  std::mutex mutex_;  // guards the rest
  std::condition_variable dispatcher_wanted_, served_;
  std::unordered_map<ServedEngine*, Entry> entries_;
  std::unordered_multimap<std::uint32_t, Entry*> by_number_;
  DueTimes due_;  // of the entries that no thread serves now
  std::uint32_t next_number_ = 0;
  std::list<std::thread> threads_;
  std::vector<std::thread> ended_;  // threads that nobody needed, to be joined
  std::thread::id dispatcher_;
  int idle_threads_ = 0;
  bool stop_ = false;
  bool has_failed_ = false;
};

}  // namespace perseus
