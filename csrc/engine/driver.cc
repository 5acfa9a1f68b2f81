#include "engine/driver.h"

#include <algorithm>
#include <utility>

#include "base/wait/futex.h"
#include "base/wait/thread.h"

namespace perseus {

namespace {

constexpr std::chrono::microseconds kLook{100'000};        // how often waiting work looks at the clock
constexpr std::chrono::microseconds kShortestLook{1'000};  // for control channels that need progress
constexpr std::chrono::microseconds kShortestSpin{2};
constexpr std::chrono::microseconds kShortestPoll{20};  // for control channels that do not notify
constexpr std::chrono::microseconds kLongestPoll{500};

// Rounded up, so that a sleep of this length reaches `until`.
std::chrono::microseconds left(Driver::Clock::time_point until) {
  if (until == Driver::Clock::time_point::max()) return ServedEngine::kForever;
  return std::max(std::chrono::ceil<std::chrono::microseconds>(until - Driver::Clock::now()),
                  std::chrono::microseconds(1));
}

}  // namespace

Driver::Driver(CycleTarget& target, ControlChannel& control, const Options& options)
    : target_(target), control_(control), options_(options), spin_(options.spin), policy_(options.several_hosts) {}

void Driver::start() {
  if (options_.threads) return options_.threads->add(*this);
  thread_ = start_thread([this] { run(); });
}

void Driver::stop() {
  if (options_.threads) return options_.threads->remove(*this);
  stop_.store(true, std::memory_order_release);
  wake();
  if (thread_.joinable()) thread_.join();
}

std::unique_lock<std::mutex> Driver::lock() {
  asking_.fetch_add(1, std::memory_order_acq_rel);
  wake();
  std::unique_lock lock(mutex_);
  asking_.fetch_sub(1, std::memory_order_acq_rel);
  return lock;
}

void Driver::poll() {
  std::unique_lock driving(mutex_, std::defer_lock);
  if (is_asked_for() || !driving.try_lock()) return;
  const auto seen = control_.doorbell().notifications();
  const auto result = run_cycle();
  let_go(std::move(driving), seen);
  // A caller that polls in a loop must leave the processor to the ranks that it waits for.
  if (result == CycleTarget::Cycle::idle) std::this_thread::yield();
}

void Driver::wait(Completion& completion, bool notified, Clock::time_point until) {
  if (completion.done()) return;
  if (!options_.several_hosts) return wait_or_drive(completion, notified, until);
  const auto begin = Clock::now();
  wait_or_drive(completion, notified, until);
  policy().add_wait(Clock::now() - begin);
}

void Driver::wait_or_drive(Completion& completion, bool notified, Clock::time_point until) {
  // Other threads usually hold the lock for a moment only.
  constexpr int kTries = 200;
  while (!completion.done() && Clock::now() < until) {
    urgent_.store(true, std::memory_order_release);
    std::unique_lock driving(mutex_, std::defer_lock);
    for (int i = 0; i < kTries && !driving && !completion.done() && !is_asked_for(); ++i) {
      if (!driving.try_lock()) pause();
    }
    if (!driving) {
      if (!std::exchange(notified, true)) wake();
      completion.wait(std::min(kLook, left(until)));
      continue;
    }
    drive(std::move(driving), completion, until);
  }
}

// Runs cycles on the caller's thread until the completion is done, or another thread asks for the lock. `driving` holds
// mutex_.
void Driver::drive(std::unique_lock<std::mutex> driving, Completion& completion, Clock::time_point until) {
  auto& doorbell = control_.doorbell();
  auto seen = doorbell.notifications();
  auto spin_until = Clock::now() + spin_;
  bool in_vain = false;
  while (!completion.done()) {
    doorbell.begin_polling();
    seen = doorbell.notifications();
    // A caller waits, so sends are not delayed: Cycle::delay is followed by another cycle at once.
    if (run_cycle() != CycleTarget::Cycle::idle) {
      spin_until = Clock::now() + spin_;
      continue;
    }
    // Read after `seen`: lock() notifies after it has asked, so this thread cannot sleep through it.
    if (completion.done() || is_asked_for()) break;
    const auto now = Clock::now();
    if (now < spin_until) {
      pause();
      continue;
    }
    if (now >= until) break;
    doorbell.wait(seen, Sleeper::caller, std::min(sleep_limit(), left(until)));
    // Between two parts of a message, the sender would have to wake this thread each time.
    const bool is_short = Clock::now() - now < options_.spin;
    if (is_short) spin_ = std::min(spin_ * 2, options_.spin);
    in_vain = in_vain || !is_short;
  }
  // If polling was in vain, another thread needs this core more.
  spin_ = in_vain ? std::max(spin_ / 2, kShortestSpin) : std::min(spin_ * 2, options_.spin);
  let_go(std::move(driving), seen);
}

// Lets the driver's thread go on. `seen`: the notifications that the caller's last cycle has served.
void Driver::let_go(std::unique_lock<std::mutex> driving, std::uint32_t seen) {
  auto& doorbell = control_.doorbell();
  // Requests that wait for other ranks need a thread that looks at the clock; the driver's own may sleep without a
  // limit.
  const bool wake_thread = target_.negotiates() && (control_.needs_polling() || std::exchange(sleeping_, false));
  driving.unlock();
  doorbell.hand_back(wake_thread ? doorbell.notifications() - 1 : seen);
}

void Driver::run() {
  prepare_engine_thread("perseus-engine", options_.core);
  ThreadPolicy::Applied applied;
  auto& doorbell = control_.doorbell();
  for (;;) {
    // Read before stop_: stop() notifies after it has set stop_, so this thread cannot sleep through it.
    const auto seen = doorbell.notifications();
    if (stop_.load(std::memory_order_acquire)) return;
    policy_.apply(Clock::now(), applied);
    const auto [result, limit] = pass();
    if (result == CycleTarget::Cycle::delay) std::this_thread::sleep_for(limit);
    if (result == CycleTarget::Cycle::idle) doorbell.wait(seen, Sleeper::engine, limit);
  }
}

std::chrono::microseconds Driver::serve() {
  auto& doorbell = control_.doorbell();
  const auto seen = doorbell.notifications();
  const auto [result, limit] = pass();
  if (result == CycleTarget::Cycle::idle) doorbell.hand_back(seen);
  return limit;
}

// Runs a cycle on the engine's thread, unless a caller drives.
Driver::Pass Driver::pass() {
  const std::unique_lock driving(mutex_, std::try_to_lock);
  if (!driving) return {CycleTarget::Cycle::idle, kLook};  // the caller may stop at any moment
  const auto result = run_cycle();
  const auto limit = sleep_limit();
  sleeping_ = limit > kLook;
  switch (result) {
    case CycleTarget::Cycle::idle: return {result, limit};
    case CycleTarget::Cycle::delay: return {result, target_.batching_delay()};
    case CycleTarget::Cycle::busy: break;
  }
  return {result, std::chrono::microseconds(0)};
}

CycleTarget::Cycle Driver::run_cycle() {
  const auto result = target_.cycle();
  if (result == CycleTarget::Cycle::busy) poll_ = std::chrono::microseconds(0);
  return result;
}

std::chrono::microseconds Driver::sleep_limit() {
  const bool expects = target_.expects_progress() || control_.keeps_any();
  if (!control_.needs_progress()) return expects ? kLook : kForever;
  // Notifications of messages are late: poll often while something is expected, and ever more seldom after work.
  const bool polls = control_.needs_polling();
  poll_ = std::clamp(poll_ * 2, polls ? kShortestPoll : kShortestLook, polls && expects ? kLongestPoll : kLook);
  return !expects && poll_ == kLook ? kForever : poll_;
}

}  // namespace perseus
