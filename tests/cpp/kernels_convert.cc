// Tests copies and the conversions of 16-bit floats: all 65536 values and all midpoints of rounding.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/host/tables.h"
#include "kernels_reference.h"

namespace perseus::host {
namespace {

using reference::half_value;
using reference::nearest_half;

class Halves : public testing::TestWithParam<DType> {
 protected:
  Reduction reduction_{DType::float32, GetParam(), ReduceOp::sum, {}};
};

template <class To, class From>
std::vector<To> converted(void (*convert)(const Kernels&, const Reduction&, const void*, void*, std::int64_t, Store),
                          const Kernels& kernels, const Reduction& reduction, const std::vector<From>& from) {
  std::vector<To> to(from.size());
  convert(kernels, reduction, from.data(), to.data(), static_cast<std::int64_t>(from.size()), Store::cached);
  return to;
}

TEST_P(Halves, AllValuesWiden) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const auto* kernels : usable_kernels()) {
    const auto wide = converted<float>(unpack, *kernels, reduction_, all);
    for (const auto bits : all) {
      const double expected = half_value(GetParam(), bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[bits])) << kernels->name << " " << bits;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[bits]), std::bit_cast<std::uint32_t>(static_cast<float>(expected)))
            << kernels->name << " " << bits;
      }
    }
    const auto back = converted<std::uint16_t>(pack, *kernels, reduction_, wide);
    for (const auto bits : all) {
      if (std::isnan(wide[bits])) continue;
      ASSERT_EQ(back[bits], bits) << kernels->name;
    }
  }
}

TEST_P(Halves, RoundingTurnsHalfWay) {
  std::vector<float> values;
  const int infinity = GetParam() == DType::float16 ? 0x7c00 : 0x7f80;
  const float top = GetParam() == DType::float16 ? 65536.0F : std::numeric_limits<float>::max();
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = half_value(GetParam(), static_cast<std::uint16_t>(bits));
    const double high = bits + 1 < infinity ? half_value(GetParam(), static_cast<std::uint16_t>(bits + 1)) : top;
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float value : {std::nextafterf(middle, 0.0F), middle, std::nextafterf(middle, 1e38F)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  std::vector<std::uint16_t> expected;
  for (const float value : values) expected.push_back(nearest_half(GetParam(), value));
  for (const auto* kernels : usable_kernels()) {
    const auto narrow = converted<std::uint16_t>(pack, *kernels, reduction_, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(half_value(GetParam(), narrow[i]))) << kernels->name;
      } else {
        ASSERT_EQ(narrow[i], expected[i]) << kernels->name << " " << values[i];
      }
    }
  }
}

TEST_P(Halves, NanKeepsSignAndDigits) {
  const std::uint32_t bits[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7fffffff, 0xffffe000};
  std::vector<float> values(std::size(bits));
  std::memcpy(values.data(), bits, sizeof bits);
  const auto scalar = converted<std::uint16_t>(pack, kScalarKernels, reduction_, values);
  for (const auto* kernels : usable_kernels()) {
    EXPECT_EQ(converted<std::uint16_t>(pack, *kernels, reduction_, values), scalar) << kernels->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Halves, testing::Values(DType::float16, DType::bfloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Kernels, PackScalesAndConverts) {
  std::mt19937_64 random(2);
  const std::vector<std::pair<DType, DType>> pairs = {
      {DType::float32, DType::float16},   {DType::float64, DType::bfloat16}, {DType::float32, DType::float32},
      {DType::bfloat16, DType::bfloat16}, {DType::int32, DType::int32},      {DType::boolean, DType::boolean}};
  for (const auto& [dtype, wire] : pairs) {
    for (const double pre : {1.0, 0.25}) {
      const Reduction reduction{dtype, wire, ReduceOp::min, {.pre = pre, .post = 3.0, .divisor = 2}};
      const auto from = reference::random_elements(dtype, 301, random);
      for (const auto* kernels : usable_kernels()) {
        reference::Bytes got(301 * size_of(wire));
        pack(*kernels, reduction, from.data(), got.data(), 301, Store::streaming);
        for (std::size_t i = 0; i < 301; ++i) {
          std::uint8_t expected[8];
          reference::pack_one(reduction, from.data() + i * size_of(dtype), expected);
          ASSERT_TRUE(reference::same(wire, got.data() + i * size_of(wire), expected))
              << kernels->name << " " << name_of(dtype) << " as " << name_of(wire) << " at " << i;
        }
      }
    }
  }
}

TEST(Kernels, CopiesAreExactAtEverySizeAndAlignment) {
  std::vector<std::uint8_t> from(9000);
  std::mt19937_64 random(4);
  for (auto& byte : from) byte = static_cast<std::uint8_t>(random());
  for (const auto* kernels : usable_kernels()) {
    for (const auto store : {Store::cached, Store::streaming}) {
      for (std::size_t bytes = 0; bytes < 8800; bytes += bytes < 400 ? 1 : 1361) {
        const std::size_t offset = bytes * 7 % 67;
        std::vector<std::uint8_t> to(9000, 0x77);
        copy(*kernels, to.data() + offset, from.data() + bytes % 5, bytes, store);
        ASSERT_EQ(std::memcmp(to.data() + offset, from.data() + bytes % 5, bytes), 0) << kernels->name << " " << bytes;
        for (std::size_t i = 0; i < to.size(); ++i) {
          if (i >= offset && i < offset + bytes) continue;
          ASSERT_EQ(to[i], 0x77) << kernels->name << " " << bytes;
        }
      }
    }
  }
}

}  // namespace
}  // namespace perseus::host
