// Tests writes of a forked child to memory that its parent shares.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "transport/shm/memory/segment.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

constexpr std::size_t kBytes = 1 << 20;

bool holds(const std::byte* data, std::byte value) {
  return std::all_of(data, data + kBytes, [value](std::byte each) { return each == value; });
}

TEST(Segment, AForkedChildWritesIntoCopies) {
  auto segment = shm::Segment::create(2 * kBytes);
  ASSERT_TRUE(segment.commit(0, 2 * kBytes));
  auto* const memory = segment.base() + kBytes;
  std::fill_n(memory, kBytes, std::byte{1});
  EXPECT_TRUE(ended_well(fork_rank([&] {
    segment.make_private();
    EXPECT_TRUE(holds(memory, std::byte{1}));
    std::fill_n(memory, kBytes, std::byte{2});
    EXPECT_TRUE(holds(memory, std::byte{2}));
  })));
  EXPECT_TRUE(holds(memory, std::byte{1}));
}

}  // namespace
}  // namespace perseus::testing
