#include "transport/shm/waiter.h"

#include <algorithm>
#include <utility>

#include "base/wait/blocking.h"

namespace perseus::shm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLongestSleep{50'000};  // limits the time until a lost peer is noticed
constexpr std::chrono::microseconds kFirstSleep{1'000};     // if there is work to do while waiting
constexpr std::chrono::microseconds kCrowdedSpin{2};
// A sleep shorter than this number of spins was the wake-up time of a peer. It must not shorten polling: two members
// that poll less and less for this reason would only wake each other from then on.
constexpr int kWakeUpSpins = 4;

// Returns the number of pause instructions in a time. Their length differs tenfold between processors.
int pauses_in(std::chrono::microseconds time) {
  constexpr int kSample = 64;
  auto best = Clock::duration::max();
  for (int round = 0; round < 3; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kSample; ++i) pause();
    best = std::min(best, Clock::now() - begin);
  }
  const auto each = std::max<double>(std::chrono::duration<double, std::nano>(best).count() / kSample, 1.0);
  return static_cast<int>(std::chrono::duration<double, std::nano>(time).count() / each) + 1;
}

}  // namespace

Waiter::Waiter(std::chrono::microseconds longest_spin, bool crowded, const Liveness& liveness,
               std::function<void()> work)
    : short_sleep_(kWakeUpSpins * longest_spin),
      longest_(pauses_in(crowded ? std::min(longest_spin, kCrowdedSpin) : longest_spin)),
      shortest_(std::max(1, longest_ / 32)),
      polls_(longest_),
      liveness_(liveness),
      work_(std::move(work)) {}

bool Waiter::wait_longer(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken, WaitFor what) {
  const int most = what == WaitFor::arrival ? polls_ : longest_;
  for (int i = 0; i < most; ++i) {
    pause();
    if (flag.reached(step)) {
      if (what == WaitFor::arrival) poll_longer();
      return true;
    }
  }
  if (what == WaitFor::progress) return sleep(flag, step, broken);
  const auto lay_down = Clock::now();
  const bool reached = sleep(flag, step, broken);
  if (Clock::now() - lay_down < short_sleep_) {
    poll_longer();
  } else {
    polls_ = std::max(shortest_, polls_ - polls_ / 8);
  }
  return reached;
}

bool Waiter::sleep(Flag& flag, std::uint32_t step, const std::atomic<std::uint32_t>& broken) const {
  before_blocking();
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  auto limit = work_ == nullptr ? kLongestSleep : kFirstSleep;
  bool reached = false, slept = false;
  for (;;) {
    const auto seen = flag.step.load(std::memory_order_seq_cst);
    reached = static_cast<std::int32_t>(seen - step) >= 0;
    if (reached || liveness_.any_lost() || broken.load(std::memory_order_acquire) != 0) break;
    if (slept && work_ != nullptr) work_();
    futex_wait(flag.step, seen, limit);
    slept = true;
    limit = std::min(2 * limit, kLongestSleep);
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return reached;
}

}  // namespace perseus::shm
