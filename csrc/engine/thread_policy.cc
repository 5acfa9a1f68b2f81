#include "engine/thread_policy.h"

#include <pthread.h>
#include <sched.h>

#include <cmath>

namespace perseus {
namespace {

constexpr std::chrono::milliseconds kPeriod{200};
constexpr double kMemorySeconds = 10;  // several training steps, with and without waiting
// Shares of the time for which callers wait. Between the two the policy stays as it is, because changing it changes the
// share.
constexpr double kPrompt = 0.15, kPatient = 0.08;

}  // namespace

bool ThreadPolicy::is_prompt(Clock::time_point now) {
  if (!several_hosts_) return false;
  if (since_ == Clock::time_point{}) since_ = now;
  if (now - since_ < kPeriod) return prompt_;
  const std::chrono::nanoseconds waited(waited_.exchange(0, std::memory_order_relaxed));
  const std::chrono::duration<double> passed = now - since_;
  const auto kept = std::exp(-passed.count() / kMemorySeconds);
  seconds_ = seconds_ * kept + passed.count();
  waited_seconds_ = waited_seconds_ * kept + std::chrono::duration<double>(waited).count();
  const auto share = waited_seconds_ / seconds_;
  since_ = now;
  if (share > kPrompt) prompt_ = true;
  if (share < kPatient) prompt_ = false;
  return prompt_;
}

void ThreadPolicy::apply(Clock::time_point now, Applied& applied) {
  const bool prompt = is_prompt(now);
  if (applied == prompt) return;
  applied = prompt;
  const sched_param none{};
  pthread_setschedparam(pthread_self(), prompt ? SCHED_OTHER : SCHED_BATCH, &none);
}

}  // namespace perseus
