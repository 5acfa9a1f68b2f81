// Tests the allocator of the arena and the arena's bounds.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "transport/shm/memory/arena.h"
#include "transport/shm/memory/heap.h"

namespace perseus::shm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(Heap, RandomUseNeverOverlapsAndEndsWhole) {
  std::mt19937 random(7);
  Heap heap(16 * kMiB);
  std::map<std::size_t, std::size_t> given;
  for (int step = 0; step < 20'000; ++step) {
    if (given.empty() || random() % 5 < 3) {
      const std::size_t bytes = random() % 8 == 0 ? random() % (2 * kMiB) : random() % 5000;
      const auto range = heap.allocate(bytes);
      if (!range) continue;
      EXPECT_GE(range->bytes, bytes);
      EXPECT_EQ(range->offset % (bytes >= Heap::kLarge ? Heap::kPage : Heap::kAlignment), 0U);
      EXPECT_LE(range->offset + range->bytes, 16 * kMiB);
      const auto next = given.lower_bound(range->offset);
      EXPECT_TRUE(next == given.end() || range->offset + range->bytes <= next->first);
      EXPECT_TRUE(next == given.begin() || std::prev(next)->first + std::prev(next)->second <= range->offset);
      given.emplace(range->offset, range->bytes);
    } else {
      auto victim = given.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(random() % given.size()));
      EXPECT_EQ(heap.release(victim->first).value().bytes, victim->second);
      given.erase(victim);
    }
  }
  for (const auto& [offset, bytes] : given) EXPECT_TRUE(heap.release(offset));
  EXPECT_EQ(heap.used(), 0U);
  EXPECT_EQ(heap.free_ranges().size(), 1U);
  EXPECT_TRUE(heap.allocate(16 * kMiB));
}

TEST(Heap, RejectsUnknownOffsets) {
  Heap heap(kMiB);
  EXPECT_FALSE(heap.allocate(2 * kMiB));
  EXPECT_FALSE(heap.allocate(SIZE_MAX));
  EXPECT_FALSE(heap.release(64));
  const auto all = heap.allocate(kMiB);
  ASSERT_TRUE(all);
  EXPECT_FALSE(heap.allocate(1));
  EXPECT_TRUE(heap.release(all->offset));
  EXPECT_FALSE(heap.release(all->offset));
}

class ArenaTest : public ::testing::Test {
 protected:
  std::shared_ptr<Segment> mine_ = std::make_shared<Segment>(Segment::create(64 * kMiB));
  std::shared_ptr<Segment> other_ = std::make_shared<Segment>(Segment::create(32 * kMiB));
  Arena arena_{{mine_, other_}, 0};
};

TEST_F(ArenaTest, FindsItsOwnMemory) {
  auto* memory = static_cast<std::byte*>(arena_.allocate(1000));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(arena_.offset_of(memory, 1000), static_cast<std::uint64_t>(memory - mine_->base()));
  EXPECT_FALSE(arena_.offset_of(mine_->base() + 64 * kMiB - 10, 11));
  EXPECT_TRUE(arena_.offset_of(mine_->base() + 64 * kMiB - 10, 10));
  EXPECT_FALSE(arena_.offset_of(mine_->base() - 1, 1));
  EXPECT_FALSE(arena_.offset_of(memory, SIZE_MAX));
  int elsewhere = 0;
  EXPECT_FALSE(arena_.offset_of(&elsewhere, sizeof elsewhere));
}

TEST_F(ArenaTest, RejectsRangesBeyondASegment) {
  EXPECT_EQ(arena_.at(1, 0, 32 * kMiB), other_->base());
  EXPECT_EQ(arena_.at(1, 1, 32 * kMiB), nullptr);
  EXPECT_EQ(arena_.at(1, 32 * kMiB + 1, 0), nullptr);
  EXPECT_EQ(arena_.at(1, UINT64_MAX, 2), nullptr);
  EXPECT_EQ(arena_.at(1, 2, UINT64_MAX), nullptr);
}

std::size_t pages_of(const Segment& segment) {
  struct stat status{};
  return fstat(segment.fd(), &status) == 0 ? static_cast<std::size_t>(status.st_blocks) * 512 : 0;
}

TEST_F(ArenaTest, MemoryThatIsUsedAgainAndAgainKeepsItsPages) {
  for (int round = 0; round < 20; ++round) {
    void* memory = arena_.allocate(40 * kMiB);
    ASSERT_NE(memory, nullptr);
    arena_.release(memory);
    EXPECT_GE(pages_of(*mine_), 40 * kMiB) << "the kernel would have to supply new pages for each message";
  }
}

TEST_F(ArenaTest, PagesThatAreNotUsedForSecondsAreReturned) {
  for (int round = 0; round < 2; ++round) {
    void* memory = arena_.allocate(40 * kMiB);
    void* small = arena_.allocate(kMiB);
    arena_.release(memory);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (pages_of(*mine_) > 18 * kMiB && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_LE(pages_of(*mine_), 18 * kMiB);
    arena_.release(small);
  }
}

TEST_F(ArenaTest, ReturnsNullWhenFull) {
  EXPECT_EQ(arena_.allocate(65 * kMiB), nullptr);
  void* most = arena_.allocate(60 * kMiB);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(arena_.allocate(10 * kMiB), nullptr);
  arena_.release(most);
  most = arena_.allocate(60 * kMiB);
  EXPECT_NE(most, nullptr);
  arena_.release(most);
  arena_.release(nullptr);
}

}  // namespace
}  // namespace perseus::shm
