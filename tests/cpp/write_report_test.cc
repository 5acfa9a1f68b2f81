#include "base/memory/write_report.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace perseus {
namespace {

constexpr std::size_t kBytes = 8192;

class WriteReportDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<volatile char*>(mapped);
  }
  void TearDown() override { munmap(const_cast<char*>(memory_), kBytes); }

  std::shared_ptr<void> report(const std::string& name) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_);
    // GCC 12 warns of uninitialized members if all of this is one initializer.
    ReadOnlyMemory memory{};
    memory.whole = {begin, kBytes, name};
    memory.tensors = {{begin, 256, "outer"}, {begin + 64, 64, "inner"}};
    memory.before = "rank 1 wrote to ";
    memory.after = "; change a copy";
    return report_writes(std::move(memory));
  }

  volatile char* memory_ = nullptr;
};

TEST_F(WriteReportDeathTest, NamesTheSmallestTensorAroundTheAddress) {
  const auto held = report("base");
  EXPECT_DEATH(memory_[70] = 1, "rank 1 wrote to inner; change a copy\n");
  EXPECT_DEATH(memory_[130] = 1, "rank 1 wrote to outer; change a copy\n");
  EXPECT_DEATH(memory_[4096] = 1, "rank 1 wrote to base; change a copy\n");
}

TEST_F(WriteReportDeathTest, EndsWithTheReport) {
  auto held = report("base");
  held.reset();
  const auto other = report("other");
  EXPECT_DEATH(memory_[4096] = 1, "^rank 1 wrote to other; change a copy\n");
}

TEST(WriteReport, HasALimitAndUsesFreedPlaces) {
  std::vector<std::shared_ptr<void>> held;
  const auto add = [&] { return report_writes({{4096 * (held.size() + 1), 1, "x"}, {}, "", ""}); };
  while (auto one = add()) held.push_back(std::move(one));
  EXPECT_EQ(held.size(), 1024U);
  held.pop_back();
  EXPECT_NE(add(), nullptr);
}

}  // namespace
}  // namespace perseus
