// The thread between hosts: in order, to the end, and nothing after a failure.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "transport/hierarchy/wire.h"

namespace perseus::hierarchy {
namespace {

TEST(Wire, CarriesOutInOrder) {
  Wire wire;
  std::vector<int> done;
  std::int64_t last = -1;
  for (int i = 0; i < 100; ++i) {
    last = wire.post([&done, i] {
      done.push_back(i);
      return Status();
    });
  }
  EXPECT_TRUE(wire.wait(last).ok());
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
}

TEST(Wire, AFailureIsKeptAndNothingFollows) {
  Wire wire;
  bool followed = false;
  const auto failing = wire.post([]() -> Status { throw std::runtime_error("no way across"); });
  const auto next = wire.post([&] {
    followed = true;
    return Status();
  });
  EXPECT_EQ(wire.wait(failing).text(), "no way across");
  EXPECT_EQ(wire.wait(next).kind(), ErrorKind::transport);
  EXPECT_FALSE(followed);
}

TEST(Wire, EndsAfterWhatWasPosted) {
  int done = 0;
  {
    Wire wire;
    for (int i = 0; i < 10; ++i) {
      wire.post([&] {
        ++done;
        return Status();
      });
    }
  }
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace perseus::hierarchy
