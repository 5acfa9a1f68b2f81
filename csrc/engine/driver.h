// Runs an engine's cycles: on the engine's thread, and on the threads of callers that wait for a result.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/completion.h"
#include "engine/engine_threads.h"
#include "engine/thread_policy.h"
#include "transport/control_channel.h"

namespace perseus {

// The engine as its driver sees it. The driver calls these functions while it holds its lock, so never two at once.
class CycleTarget {
 public:
  enum class Cycle { idle, busy, delay };

  virtual ~CycleTarget() = default;
  // Makes one pass over everything that may have happened. Never throws.
  virtual Cycle cycle() = 0;
  // Returns true if something is expected, so that the driver must look at the clock from time to time.
  virtual bool expects_progress() = 0;
  // Returns true if names wait for other ranks.
  virtual bool negotiates() = 0;
  // Returns how long to wait after Cycle::delay.
  virtual std::chrono::microseconds batching_delay() = 0;
};

// The thread that waits for a completion drives the engine meanwhile, which saves two thread switches per collective.
// The engine's thread runs cycles if no caller does. It is one of EngineThreads, or a thread of this engine alone.
class Driver final : private ServedEngine {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::chrono::microseconds spin{30};  // how long a caller polls before it sleeps
    int core = -1;                       // the core that the thread is bound to; -1: any
    bool several_hosts = false;
    std::shared_ptr<EngineThreads> threads;  // null: a thread of its own
  };

  // Starts the thread at start(), once `target` is ready.
  Driver(CycleTarget& target, ControlChannel& control, const Options& options);
  ~Driver() override { stop(); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  void start();
  // Ends the thread, or its work for this engine. Idempotent.
  void stop();

  // Makes the current driver run a cycle soon. Thread-safe.
  void wake() { control_.doorbell().notify(); }

  // Runs a cycle on the caller's thread, unless another thread drives. Never throws. Thread-safe.
  void poll();

  // Blocks until the completion is done, or until `until`. `notified`: wake() was called after its work was submitted.
  // Never throws. Thread-safe.
  void wait(Completion& completion, bool notified, Clock::time_point until);

  // Returns true, once, if a caller has begun to wait since the last call.
  bool take_urgent() { return urgent_.exchange(false, std::memory_order_acq_rel); }

  // Returns the driver's lock. No cycle runs while it is held. A caller that waits for its completion lets go of the
  // lock, so this blocks for one cycle at most.
  std::unique_lock<std::mutex> lock();

 private:
  // The result of one pass of the engine's thread. Without a notification, the next pass is due after `limit`.
  struct Pass {
    CycleTarget::Cycle result = CycleTarget::Cycle::idle;
    std::chrono::microseconds limit{0};
  };

  void run();
  Pass pass();
  std::chrono::microseconds serve() override;
  Doorbell& doorbell() override { return control_.doorbell(); }
  ThreadPolicy& policy() { return options_.threads ? options_.threads->policy() : policy_; }
  void wait_or_drive(Completion& completion, bool notified, Clock::time_point until);
  void drive(std::unique_lock<std::mutex> driving, Completion& completion, Clock::time_point until);
  void let_go(std::unique_lock<std::mutex> driving, std::uint32_t seen);
  bool is_asked_for() const { return asking_.load(std::memory_order_acquire) > 0; }
  CycleTarget::Cycle run_cycle();
  std::chrono::microseconds sleep_limit();

  CycleTarget& target_;
  ControlChannel& control_;
  Options options_;

  std::mutex mutex_;  // its holder is the driver; guards the members up to the blank line
  std::chrono::microseconds spin_;
  std::chrono::microseconds poll_{0};
  bool sleeping_ = false;  // the thread sleeps until it is notified, however long that takes

  ThreadPolicy policy_;  // of the engine's own thread
  std::atomic<bool> urgent_{false};
  std::atomic<int> asking_{0};  // number of threads in lock()
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace perseus
