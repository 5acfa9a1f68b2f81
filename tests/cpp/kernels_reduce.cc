// Compares every type, operation, number of sources, scale, alignment and instruction set with plain arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/host/kernels.h"
#include "device/host/tables.h"
#include "kernels_reference.h"

namespace perseus::host {
namespace {

using reference::Bytes;

constexpr ReduceOp kOps[] = {ReduceOp::sum,  ReduceOp::min, ReduceOp::max, ReduceOp::product,
                             ReduceOp::band, ReduceOp::bor, ReduceOp::bxor};
constexpr std::uint8_t kGuard = 0xa5;
constexpr std::size_t kMargin = 128;  // bytes around a destination that must not change

bool has_operation(DType dtype, ReduceOp op) { return !is_floating(dtype) || op <= ReduceOp::product; }

// Memory at a given offset from a boundary of 64 bytes, with guards on both sides.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t offset) : bytes_(bytes), storage_(bytes + 128 + 2 * kMargin, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kMargin;
    start_ = kMargin + (64 - address % 64) % 64 + offset % 64;
  }

  std::uint8_t* data() { return storage_.data() + start_; }
  bool guards_untouched() const {
    const auto is_guard = [](std::uint8_t byte) { return byte == kGuard; };
    const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(start_);
    return std::all_of(storage_.begin(), begin, is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_guard);
  }

 private:
  std::size_t bytes_;
  Bytes storage_;
  std::size_t start_ = 0;
};

// The layout of one call, on which the result must not depend.
struct Layout {
  std::size_t source_offset = 0;
  std::vector<std::size_t> destination_offsets = {0};
  Store store = Store::cached;
  bool in_place = false;  // the first destination is the last source
};

struct Case {
  Reduction reduction;
  bool packed = false;
  bool to_wire = false;
  std::size_t count = 0;

  DType in() const { return packed ? reduction.wire_dtype : reduction.dtype; }
  DType out() const { return to_wire ? reduction.wire_dtype : reduction.dtype; }
  std::string text(const Kernels& kernels) const {
    return std::string(kernels.name) + " " + std::string(name_of(reduction.op)) + " " + std::string(name_of(in())) +
           " via " + std::string(name_of(reduction.wire_dtype)) + " to " + std::string(name_of(out())) + ", " +
           std::to_string(count) + " elements, pre " + std::to_string(reduction.scale.pre) + " post " +
           std::to_string(reduction.scale.post) + " divisor " + std::to_string(reduction.scale.divisor);
  }
};

std::vector<Bytes> random_sources(const Case& work, std::size_t sources, std::mt19937_64& random) {
  std::vector<Bytes> from;
  for (std::size_t s = 0; s < sources; ++s) from.push_back(reference::random_elements(work.in(), work.count, random));
  return from;
}

Bytes expected_result(const Case& work, const std::vector<Bytes>& sources) {
  Bytes result(work.count * size_of(work.out()));
  std::vector<const std::uint8_t*> from(sources.size());
  for (std::size_t i = 0; i < work.count; ++i) {
    for (std::size_t s = 0; s < sources.size(); ++s) from[s] = sources[s].data() + i * size_of(work.in());
    reference::reduce_one(work.reduction, work.packed, work.to_wire, from, result.data() + i * size_of(work.out()));
  }
  return result;
}

// Returns the expected contents of each destination.
std::vector<Bytes> run(const Kernels& kernels, const Case& work, const Layout& layout,
                       const std::vector<Bytes>& sources) {
  std::vector<Buffer> from;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    from.emplace_back(sources[s].size(), layout.source_offset * (s + 1));
    if (!sources[s].empty()) std::memcpy(from.back().data(), sources[s].data(), sources[s].size());
  }
  const std::size_t bytes = work.count * size_of(work.out());
  std::vector<Buffer> to;
  for (const auto offset : layout.destination_offsets) to.emplace_back(bytes, offset);

  std::vector<const void*> from_pointers;
  std::vector<void*> to_pointers;
  for (auto& buffer : from) from_pointers.push_back(buffer.data());
  for (auto& buffer : to) to_pointers.push_back(buffer.data());
  if (layout.in_place) to_pointers.front() = from.back().data();

  ReduceCall call;
  call.reduction = work.reduction;
  call.from = from_pointers;
  call.packed = work.packed;
  call.to = to_pointers;
  call.to_wire = work.to_wire;
  call.count = static_cast<std::int64_t>(work.count);
  call.store = layout.store;
  reduce(kernels, call);

  for (const auto& buffer : from) EXPECT_TRUE(buffer.guards_untouched()) << work.text(kernels);
  for (const auto& buffer : to) EXPECT_TRUE(buffer.guards_untouched()) << work.text(kernels);
  std::vector<Bytes> results;
  for (auto* pointer : to_pointers) {
    const auto* first = static_cast<const std::uint8_t*>(pointer);
    results.emplace_back(first, first + bytes);
  }
  return results;
}

// Returns the index of the first element that differs, or count.
std::size_t first_difference(const Case& work, const Bytes& got, const Bytes& expected) {
  const auto size = size_of(work.out());
  std::size_t i = 0;
  while (i < work.count && reference::same(work.out(), got.data() + i * size, expected.data() + i * size)) ++i;
  return i;
}

void check(const Case& work, const Layout& layout, std::size_t sources, std::mt19937_64& random) {
  const auto from = random_sources(work, sources, random);
  const auto expected = expected_result(work, from);
  for (const auto* kernels : usable_kernels()) {
    for (const auto& got : run(*kernels, work, layout, from)) {
      ASSERT_EQ(first_difference(work, got, expected), work.count)
          << work.text(*kernels) << ", " << sources << " sources";
    }
  }
}

const std::vector<Scale> kScales = {
    {},
    {.pre = 0.5},
    {.divisor = 3},
    {.post = 2.0, .divisor = 4},
    {.pre = 1.0 / 3, .post = 0.7, .divisor = 5},
    {.pre = -2.0, .post = -1.5},
};

const std::vector<Layout> kLayouts = {
    {},
    {.destination_offsets = {0, 0}, .store = Store::streaming},
    {.source_offset = 8, .destination_offsets = {8, 24}},
    {.source_offset = 1, .destination_offsets = {1, 3, 0}, .store = Store::streaming},
    {.source_offset = 16, .destination_offsets = {16, 16, 40, 48}, .store = Store::streaming},
    {.destination_offsets = {0, 8}, .in_place = true},
    {.source_offset = 24, .destination_offsets = {0}, .store = Store::streaming, .in_place = true},
};

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 31, 63, 64, 65, 127, 257, 511, 1029};

// All counts, each with the next of the layouts.
void check_counts(Case work, std::size_t sources, std::size_t& turn, std::mt19937_64& random) {
  for (const auto count : kCounts) {
    work.count = count;
    auto layout = kLayouts[turn++ % kLayouts.size()];
    // Wider elements do not fit where narrower ones were.
    if (size_of(work.out()) > size_of(work.in())) layout.in_place = false;
    check(work, layout, sources, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class EveryType : public testing::TestWithParam<DType> {};

TEST_P(EveryType, ReducesLikePlainArithmetic) {
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  std::size_t turn = 0;
  for (const auto op : kOps) {
    if (!has_operation(GetParam(), op)) continue;
    for (const auto& scale : kScales) {
      for (std::size_t sources = 1; sources <= 5; ++sources) {
        const Case work{{GetParam(), GetParam(), op, scale}, sources % 2 == 0 && scale.pre == 1.0, false, 0};
        check_counts(work, sources, turn, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EveryType, ManySources) {
  std::mt19937_64 random(7);
  check({{GetParam(), GetParam(), ReduceOp::sum, {}}, false, false, 333}, kLayouts[1], 67, random);
}

TEST_P(EveryType, AnElementDoesNotDependOnItsPlace) {
  std::mt19937_64 random(11);
  const Reduction reduction{GetParam(), GetParam(), ReduceOp::sum, {.pre = 0.7, .post = 1.0, .divisor = 3}};
  const Case whole{reduction, false, false, 300};
  const auto from = random_sources(whole, 3, random);
  const auto size = static_cast<std::ptrdiff_t>(size_of(GetParam()));
  for (const auto* kernels : usable_kernels()) {
    const auto together = run(*kernels, whole, {}, from).front();
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(whole.count); ++i) {
      std::vector<Bytes> one;
      for (const auto& source : from) one.emplace_back(source.begin() + i * size, source.begin() + (i + 1) * size);
      const auto alone = run(*kernels, {reduction, false, false, 1}, {}, one).front();
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + i * size)) << kernels->name << " at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryType,
                         testing::Values(DType::uint8, DType::int8, DType::int16, DType::int32, DType::int64,
                                         DType::float16, DType::bfloat16, DType::float32, DType::float64,
                                         DType::boolean, DType::uint16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

class Compressed : public testing::TestWithParam<std::pair<DType, DType>> {};

TEST_P(Compressed, ReducesLikePlainArithmetic) {
  const auto [dtype, wire] = GetParam();
  std::mt19937_64 random(3);
  std::size_t turn = 0;
  for (const auto op : kOps) {
    if (!has_operation(dtype, op)) continue;
    for (const auto& scale : kScales) {
      for (std::size_t sources = 1; sources <= 4; ++sources) {
        for (const bool packed : {false, true}) {
          for (const bool to_wire : {false, true}) {
            check_counts({{dtype, wire, op, scale}, packed, to_wire, 0}, sources, turn, random);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Packed or unpacked contributions and packed or unpacked results give the same bits.
TEST_P(Compressed, AllConversionsGiveTheSameResult) {
  const auto [dtype, wire] = GetParam();
  const Reduction reduction{dtype, wire, ReduceOp::sum, {.pre = 0.3, .post = 1.0, .divisor = 3}};
  std::mt19937_64 random(5);
  const Case direct{reduction, false, false, 777};
  const auto from = random_sources(direct, 3, random);
  for (const auto* kernels : usable_kernels()) {
    std::vector<Bytes> sent;
    for (const auto& source : from) {
      sent.emplace_back(777 * size_of(wire));
      pack(*kernels, reduction, source.data(), sent.back().data(), 777, Store::cached);
    }
    const auto wanted = run(*kernels, direct, {}, from).front();
    EXPECT_EQ(run(*kernels, {reduction, true, false, 777}, {}, sent).front(), wanted);
    const auto returned = run(*kernels, {reduction, true, true, 777}, {}, sent).front();
    Bytes widened(777 * size_of(dtype));
    unpack(*kernels, reduction, returned.data(), widened.data(), 777, Store::streaming);
    EXPECT_EQ(widened, wanted) << kernels->name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, Compressed,
    testing::Values(std::pair{DType::float32, DType::float16}, std::pair{DType::float32, DType::bfloat16},
                    std::pair{DType::float64, DType::float16}, std::pair{DType::float64, DType::bfloat16}),
    [](const auto& info) {
      return std::string(name_of(info.param.first)) + "_" + std::string(name_of(info.param.second));
    });

template <class T>
std::vector<T> reduce_values(const Kernels& kernels, const Reduction& reduction, std::vector<std::vector<T>> sources) {
  std::vector<T> result(sources.front().size());
  std::vector<const void*> from;
  for (const auto& source : sources) from.push_back(source.data());
  void* const to[] = {result.data()};
  ReduceCall call;
  call.reduction = reduction;
  call.from = from;
  call.to = to;
  call.count = static_cast<std::int64_t>(result.size());
  reduce(kernels, call);
  return result;
}

TEST(Kernels, AllInstructionSetsGiveTheSameBits) {
  std::mt19937_64 random(9);
  for (const auto dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    const Case work{{dtype, dtype, ReduceOp::sum, {.pre = 1.1, .post = 0.9, .divisor = 7}}, false, false, 5003};
    std::vector<Bytes> from;
    for (int s = 0; s < 4; ++s) {
      Bytes bytes(work.count * size_of(dtype));
      for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
      from.push_back(std::move(bytes));
    }
    const auto scalar = run(kScalarKernels, work, {}, from).front();
    for (const auto* kernels : usable_kernels()) {
      const auto got = run(*kernels, work, {}, from).front();
      EXPECT_EQ(first_difference(work, got, scalar), work.count) << work.text(*kernels);
    }
  }
}

TEST(Kernels, LargeIntegersAreScaledExactly) {
  const std::int64_t large = (std::int64_t{1} << 61) + 1;
  const Scale average{.pre = 2.0, .post = 1.0, .divisor = 3};
  for (const auto* kernels : usable_kernels()) {
    const Reduction reduction{DType::int64, DType::int64, ReduceOp::max, average};
    EXPECT_EQ(reduce_values<std::int64_t>(*kernels, reduction, {{large, -large}, {1, -large}}),
              (std::vector<std::int64_t>{2 * large / 3, -2 * large / 3}));
  }
}

TEST(Kernels, FactorsBeyondTheRangeOfIntegersSaturate) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  for (const auto* kernels : usable_kernels()) {
    const auto scaled = [&](double pre, std::int64_t divisor) {
      const Reduction reduction{DType::int64, DType::int64, ReduceOp::sum, {pre, 1.0, divisor}};
      return reduce_values<std::int64_t>(*kernels, reduction, {{5, -5, kLeast}});
    };
    EXPECT_EQ(scaled(1e300, 1), (std::vector<std::int64_t>{kMost, kLeast, kLeast}));
    EXPECT_EQ(scaled(std::nan(""), 1), (std::vector<std::int64_t>{0, 0, 0}));
    EXPECT_EQ(scaled(1.0, -1), (std::vector<std::int64_t>{-5, 5, kLeast}));
  }
}

TEST(Kernels, SixteenBitSumsAreRoundedOnce) {
  // 2048 + 1 is not a float16. In float32, four ones add up to 4 before rounding.
  const std::uint16_t large = reference::nearest_half(DType::float16, 2048);
  const std::uint16_t one = reference::nearest_half(DType::float16, 1);
  for (const auto* kernels : usable_kernels()) {
    const Reduction reduction{DType::float16, DType::float16, ReduceOp::sum, {}};
    const auto sum = reduce_values<std::uint16_t>(*kernels, reduction, {{large}, {one}, {one}, {one}, {one}});
    EXPECT_EQ(reference::half_value(DType::float16, sum[0]), 2052.0) << kernels->name;
  }
}

TEST(Kernels, AnyNonzeroByteIsTrue) {
  for (const auto* kernels : usable_kernels()) {
    const Reduction all{DType::boolean, DType::boolean, ReduceOp::product, {}};
    EXPECT_EQ(reduce_values<std::uint8_t>(*kernels, all, {{2, 2, 0}, {1, 0, 0}}), (std::vector<std::uint8_t>{1, 0, 0}));
    const Reduction any{DType::boolean, DType::boolean, ReduceOp::sum, {}};
    EXPECT_EQ(reduce_values<std::uint8_t>(*kernels, any, {{2, 2, 0}, {1, 0, 0}}), (std::vector<std::uint8_t>{1, 1, 0}));
  }
}

TEST(Kernels, MissingReductionsAreRejected) {
  const Reduction bits{DType::float32, DType::float32, ReduceOp::bor, {}};
  const Reduction nowhere{DType::int32, DType::float16, ReduceOp::sum, {}};
  const Reduction by_zero{DType::int32, DType::int32, ReduceOp::sum, {.divisor = 0}};
  for (const auto& reduction : {bits, nowhere, by_zero}) {
    EXPECT_THROW(reduce_values<float>(kScalarKernels, reduction, {{1}, {2}}), Error);
  }
}

TEST(Kernels, TheFastestInstructionSetIsUsed) { EXPECT_STREQ(instruction_set(), usable_kernels().front()->name); }

}  // namespace
}  // namespace perseus::host
