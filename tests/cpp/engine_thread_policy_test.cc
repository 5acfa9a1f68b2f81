// Tests when the communication thread is prompt, which depends on callers that wait for transfers.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <thread>

#include "engine/thread_policy.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

const ThreadPolicy::Clock::time_point kStart{1h};

TEST(ThreadPolicy, FollowsTheFractionOfTimeThatCallersWait) {
  ThreadPolicy policy(/*several_hosts=*/true);
  EXPECT_FALSE(policy.is_prompt(kStart));
  policy.add_wait(30s);
  EXPECT_TRUE(policy.is_prompt(kStart + 100s));
  policy.add_wait(10s);  // a tenth: too little to become so, enough to stay
  EXPECT_TRUE(policy.is_prompt(kStart + 200s));
  policy.add_wait(2s);
  EXPECT_FALSE(policy.is_prompt(kStart + 300s));
  policy.add_wait(10s);
  EXPECT_FALSE(policy.is_prompt(kStart + 400s));
}

TEST(ThreadPolicy, ConsidersSeveralStepsAtOnce) {
  ThreadPolicy policy(true);
  EXPECT_FALSE(policy.is_prompt(kStart));
  for (int step = 1; step <= 10; ++step) {
    policy.add_wait(500ms);  // at its end
    EXPECT_TRUE(policy.is_prompt(kStart + step * 1s));
    EXPECT_TRUE(policy.is_prompt(kStart + step * 1s + 500ms)) << "half of a step is over";
  }
}

TEST(ThreadPolicy, OnOneHostTheThreadIsNeverPrompt) {
  ThreadPolicy policy(false);
  EXPECT_FALSE(policy.is_prompt(kStart));
  policy.add_wait(10s);
  EXPECT_FALSE(policy.is_prompt(kStart + 10s));
}

TEST(ThreadPolicy, AppliesToTheCallingThread) {
  std::thread([] {
    const auto mine = [] {
      sched_param none{};
      int policy = -1;
      EXPECT_EQ(pthread_getschedparam(pthread_self(), &policy, &none), 0);
      return policy;
    };
    ThreadPolicy policy(true);
    ThreadPolicy::Applied applied;
    policy.apply(kStart, applied);
    EXPECT_EQ(mine(), SCHED_BATCH);
    policy.add_wait(1s);
    policy.apply(kStart + 1s, applied);
    EXPECT_EQ(mine(), SCHED_OTHER);
    policy.apply(kStart + 100s, applied);
    EXPECT_EQ(mine(), SCHED_BATCH);
  }).join();
}

}  // namespace
}  // namespace perseus
