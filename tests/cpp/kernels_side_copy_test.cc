// Tests that a reduction with a side copy gives the results of a reduction and a copy.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "device/host/tables.h"

namespace perseus::host {
namespace {

TEST(SideCopy, CopiesForAnyCounts) {
  for (const auto* kernels : usable_kernels()) {
    for (const std::size_t count : {0, 1, 100, 1024, 5000}) {
      for (const std::size_t bytes : {0, 1, 63, 512, 4096, 4097, 50'000}) {
        std::vector<float> a(count, 1.5F), b(count, 2.0F), sum(count);
        std::vector<std::uint8_t> from(bytes), to(bytes + 1, 0xee);
        std::iota(from.begin(), from.end(), std::uint8_t{0});
        const std::array<const void*, 2> sources = {a.data(), b.data()};
        const std::array<void*, 1> destinations = {sum.data()};
        ReduceCall call;
        call.from = sources;
        call.to = destinations;
        call.count = static_cast<std::int64_t>(count);
        call.store = Store::streaming;
        call.side_copy = {to.data(), from.data(), bytes};
        reduce(*kernels, call);
        EXPECT_EQ(sum, std::vector<float>(count, 3.5F)) << kernels->name;
        EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin())) << kernels->name << ' ' << bytes;
        EXPECT_EQ(to.back(), 0xee) << kernels->name << ' ' << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace perseus::host
