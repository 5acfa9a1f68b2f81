// Tests that the communication thread runs jobs in order, all of them, and none after a failure.
#include "transport/hierarchy/communication_thread.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace perseus::hierarchy {
namespace {

TEST(CommunicationThread, RunsJobsInOrder) {
  CommunicationThread thread;
  std::vector<int> done;
  std::int64_t last = -1;
  for (int i = 0; i < 100; ++i) {
    last = thread.post([&done, i] {
      done.push_back(i);
      return Status();
    });
  }
  EXPECT_TRUE(thread.wait(last).ok());
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
}

TEST(CommunicationThread, AFailureIsKeptAndLaterJobsDoNotRun) {
  CommunicationThread thread;
  bool followed = false;
  const auto failing = thread.post([]() -> Status { throw std::runtime_error("no way across"); });
  const auto next = thread.post([&] {
    followed = true;
    return Status();
  });
  EXPECT_EQ(thread.wait(failing).text(), "no way across");
  EXPECT_EQ(thread.wait(next).kind(), ErrorKind::transport);
  EXPECT_FALSE(followed);
}

TEST(CommunicationThread, EndsAfterPostedJobs) {
  int done = 0;
  {
    CommunicationThread thread;
    for (int i = 0; i < 10; ++i) {
      thread.post([&] {
        ++done;
        return Status();
      });
    }
  }
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace perseus::hierarchy
