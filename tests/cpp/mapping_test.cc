// Tests memory that is mapped at two addresses.
#include "base/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace perseus::testing {
namespace {

class Pages {
 public:
  Pages(std::size_t bytes, int kind) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
  }
  ~Pages() { munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  bool holds(std::byte value) const {
    return std::all_of(data(), data() + bytes_, [value](std::byte each) { return each == value; });
  }
  void fill(std::byte value) const { std::fill_n(data(), bytes_, value); }

 private:
  std::size_t bytes_;
  void* memory_;
};

const auto kBytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) * 5;

TEST(Mapping, BothAddressesAreTheSameMemory) {
  const Pages shared(kBytes, MAP_SHARED);
  {
    const Pages place(kBytes, MAP_PRIVATE);
    place.fill(std::byte{7});
    const auto status = show_at(place.data(), shared.data(), kBytes);
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_TRUE(shared.holds(std::byte{7})) << "what the place held";
    shared.fill(std::byte{8});
    EXPECT_TRUE(place.holds(std::byte{8}));
    place.fill(std::byte{9});
  }
  EXPECT_TRUE(shared.holds(std::byte{9})) << "when the place is unmapped";
}

TEST(Mapping, MemoryThatCannotBeMappedKeepsItsBytes) {
  const Pages alone(kBytes, MAP_PRIVATE), place(kBytes, MAP_PRIVATE);
  place.fill(std::byte{7});
  const auto status = show_at(place.data(), alone.data(), kBytes);
  EXPECT_EQ(status.kind(), ErrorKind::unavailable) << status.text();
  EXPECT_TRUE(place.holds(std::byte{7}));
  alone.fill(std::byte{8});
  EXPECT_TRUE(place.holds(std::byte{7})) << "they are two";

  EXPECT_EQ(show_at(place.data() + 64, alone.data(), 64).kind(), ErrorKind::unavailable);
  EXPECT_TRUE(place.holds(std::byte{7}));
}

}  // namespace
}  // namespace perseus::testing
