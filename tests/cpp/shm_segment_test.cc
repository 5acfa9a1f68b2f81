// Tests writes of a forked child to memory that its parent shares.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/mapping.h"
#include "transport/shm/segment.h"
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
  // A second mapping, like that of a framework's tensor.
  auto* const place =
      static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(place, MAP_FAILED);
  ASSERT_TRUE(show_at(place, memory, kBytes).ok());
  std::fill_n(memory, kBytes, std::byte{1});
  EXPECT_TRUE(ended_well(fork_rank([&] {
    segment.make_private();
    EXPECT_TRUE(holds(memory, std::byte{1}));
    EXPECT_TRUE(holds(place, std::byte{1}));
    std::fill_n(memory, kBytes, std::byte{2});
    std::fill_n(place, kBytes, std::byte{3});
    EXPECT_TRUE(holds(memory, std::byte{2}));
    EXPECT_TRUE(holds(place, std::byte{3}));
  })));
  EXPECT_TRUE(holds(memory, std::byte{1}));
  EXPECT_TRUE(holds(place, std::byte{1}));
  munmap(place, kBytes);
}

}  // namespace
}  // namespace perseus::testing
