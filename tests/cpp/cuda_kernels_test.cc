// Compares the packing kernels for CUDA, run on the host, with the host's kernels.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "cuda_fake.h"
#include "device/cuda/cuda_device.h"
#include "device/host/kernels.h"
#include "kernels_reference.h"

namespace perseus {
namespace {

using cuda::CudaDevice;
using testing::FakeCuda;
using testing::FakeStreams;

struct Packing {
  DType dtype, wire_dtype;
};

std::vector<Packing> packings() {
  std::vector<Packing> all;
  for (int i = 0; i < kDTypeCount; ++i) all.push_back({static_cast<DType>(i), static_cast<DType>(i)});
  for (const auto wide : {DType::float32, DType::float64}) {
    for (const auto narrow : {DType::float16, DType::bfloat16}) all.push_back({wide, narrow});
  }
  return all;
}

// Tensors of many sizes, some of them unaligned for vectors, and one buffer for all, in which each tensor is aligned.
struct Tensors {
  std::vector<reference::Bytes> memory;
  std::vector<Piece> pieces;

  Tensors(DType dtype, const std::vector<std::int64_t>& counts, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto skipped = i % 3;  // elements
      memory.push_back(reference::random_elements(dtype, static_cast<std::size_t>(counts[i]) + skipped, random));
      pieces.push_back({memory.back().data() + skipped * size_of(dtype), counts[i]});
    }
  }
};

const std::vector<std::int64_t> kCounts = {1, 0, 7, 64, 1000, 4096, 8191, 8192, 8193, 40'000, 3};

class CudaPacking : public ::testing::TestWithParam<Packing> {
 protected:
  FakeCuda fake;
  std::shared_ptr<CudaDevice> device = CudaDevice::open(fake.driver(), 0);
  Packing packing = GetParam();
  std::shared_ptr<const Stream> stream = device->make_stream();

  void SetUp() override { ASSERT_TRUE(device->has_kernels()); }

  Reduction reduction(const Scale& scale) const { return {packing.dtype, packing.wire_dtype, ReduceOp::sum, scale}; }
  void finish() { device->synchronize(*device->record(*stream)); }

  void expect_packed(const Reduction& how) {
    const Tensors tensors(packing.dtype, kCounts, 1);
    const auto width = size_of(packing.wire_dtype);
    reference::Bytes buffer(static_cast<std::size_t>(packed_count(how, tensors.pieces)) * width);
    device->pack(*stream, how, tensors.pieces, buffer.data());
    finish();
    reference::Bytes expected(width);
    const auto* begin = buffer.data();
    for (const auto& piece : tensors.pieces) {
      const auto* from = static_cast<const std::uint8_t*>(piece.data);
      const auto* at = begin;
      begin += static_cast<std::size_t>(aligned_count(piece.count, width)) * width;
      for (std::int64_t i = 0; i < piece.count; ++i, at += width, from += size_of(packing.dtype)) {
        reference::pack_one(how, from, expected.data());
        ASSERT_TRUE(reference::same(packing.wire_dtype, at, expected.data()))
            << "element " << i << " of " << piece.count;
      }
    }
  }

  // Returns what the host's kernels compute for one contribution in the wire dtype.
  void expect_unpacked(const Reduction& how) {
    const Tensors tensors(packing.dtype, kCounts, 2);
    std::mt19937_64 random(3);
    const auto count = static_cast<std::size_t>(packed_count(how, tensors.pieces));
    const auto buffer = reference::random_elements(packing.wire_dtype, count, random);
    device->unpack(*stream, how, buffer.data(), tensors.pieces);
    finish();
    const auto* from = buffer.data();
    for (const auto& piece : tensors.pieces) {
      const auto bytes = static_cast<std::size_t>(piece.count) * size_of(packing.dtype);
      reference::Bytes expected(bytes);
      const void* sources[] = {from};
      void* targets[] = {expected.data()};
      auto plain = how;
      plain.dtype = how.wire_dtype;  // values of the wire dtype are not rounded again
      if (how.dtype == how.wire_dtype) {
        host::reduce({plain, sources, true, targets, false, piece.count});
        for (std::int64_t i = 0; i < piece.count; ++i) {
          const auto offset = static_cast<std::size_t>(i) * size_of(packing.dtype);
          ASSERT_TRUE(reference::same(packing.dtype, static_cast<const std::uint8_t*>(piece.data) + offset,
                                      expected.data() + offset))
              << "element " << i << " of " << piece.count;
        }
      } else {
        const double factor = how.scale.post / static_cast<double>(how.scale.divisor);
        for (std::int64_t i = 0; i < piece.count; ++i) {
          const auto wide =
              reference::decode(how.wire_dtype, from + static_cast<std::size_t>(i) * size_of(how.wire_dtype)).real;
          const auto product = static_cast<float>(wide) * static_cast<float>(factor);
          reference::encode(how.dtype, {0, product}, expected.data());
          ASSERT_TRUE(reference::same(
              how.dtype,
              static_cast<const std::uint8_t*>(piece.data) + static_cast<std::size_t>(i) * size_of(how.dtype),
              expected.data()))
              << "element " << i << " of " << piece.count;
        }
      }
      const auto width = size_of(how.wire_dtype);
      from += static_cast<std::size_t>(aligned_count(piece.count, width)) * width;
    }
  }
};

TEST_P(CudaPacking, Packs) { expect_packed(reduction({})); }
TEST_P(CudaPacking, PacksScaled) { expect_packed(reduction({0.3, 1.0, 1})); }
TEST_P(CudaPacking, PacksScaledByAWholeNumber) { expect_packed(reduction({3.0, 1.0, 1})); }
TEST_P(CudaPacking, Unpacks) { expect_unpacked(reduction({})); }
TEST_P(CudaPacking, UnpacksAnAverage) { expect_unpacked(reduction({1.0, 1.0, 3})); }
TEST_P(CudaPacking, UnpacksScaled) { expect_unpacked(reduction({1.0, 0.7, 2})); }

INSTANTIATE_TEST_SUITE_P(, CudaPacking, ::testing::ValuesIn(packings()), [](const auto& kind) {
  return std::string(name_of(kind.param.dtype)) + "_" + std::string(name_of(kind.param.wire_dtype));
});

class CudaLaunches : public ::testing::Test {
 protected:
  FakeCuda fake;
  std::shared_ptr<CudaDevice> device = CudaDevice::open(fake.driver(), 0);
  std::shared_ptr<const Stream> stream = device->make_stream();

  void SetUp() override { ASSERT_TRUE(device->has_kernels()); }
};

TEST_F(CudaLaunches, OneKernelPacksAnyNumberOfTensors) {
  std::vector<float> values(5000, 1.0F), packed(4 * 5000);
  std::vector<Piece> pieces;
  for (auto& value : values) pieces.push_back({&value, 1});
  device->pack(*stream, {.scale = {2.0, 1.0, 1}}, pieces, packed.data());
  device->synchronize(*device->record(*stream));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(packed[4 * i], 2.0F);  // each at a multiple of 16 bytes
  EXPECT_EQ(fake.launched(), std::vector<std::string>{"perseus_pack_float32_float32"});
}

TEST_F(CudaLaunches, TheTableOfTheSameTensorsIsCopiedOnce) {
  std::vector<float> a(10), b(20), packed(32);
  const std::vector<Piece> pieces = {{a.data(), 10}, {b.data(), 20}};
  for (int step = 0; step < 5; ++step) device->pack(*stream, {}, pieces, packed.data());
  device->synchronize(*device->record(*stream));
  EXPECT_EQ(fake.calls("cuLaunchKernel"), 5);
  EXPECT_EQ(fake.calls("cuMemcpyAsync"), 1);
}

// Uses more layouts than the number of kept tables; replaced tables may be in use.
TEST_F(CudaLaunches, TablesAreReplacedWhileTheyAreInUse) {
  std::vector<float> a(200), b(200), packed(400);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] = static_cast<float>(i);
  for (std::int64_t layout = 1; layout <= 200; ++layout) {
    const std::vector<Piece> pieces = {{a.data(), layout}, {b.data(), layout}};
    device->pack(*stream, {}, pieces, packed.data());
    if (layout % 50 != 0) continue;
    device->synchronize(*device->record(*stream));
    for (std::int64_t i = 0; i < layout; ++i) {
      ASSERT_EQ(packed[static_cast<std::size_t>(i)], a[static_cast<std::size_t>(i)]);
      ASSERT_EQ(packed[static_cast<std::size_t>(aligned_count(layout, sizeof(float)) + i)],
                b[static_cast<std::size_t>(i)]);
    }
  }
}

TEST_F(CudaLaunches, OneTensorThatIsOnlyCopiedNeedsNoKernel) {
  std::vector<float> a(10, 3.0F), packed(10);
  const std::vector<Piece> pieces = {{a.data(), 10}};
  device->pack(*stream, {}, pieces, packed.data());
  device->unpack(*stream, {}, a.data(), pieces);  // its own memory
  device->synchronize(*device->record(*stream));
  EXPECT_EQ(packed, a);
  EXPECT_TRUE(fake.launched().empty());
}

TEST(CudaWithoutKernels, CopiesReplaceThem) {
  FakeCuda fake;
  fake.fail("cuModuleLoadDataEx", 222);
  const auto device = CudaDevice::open(fake.driver(), 0);
  ASSERT_FALSE(device->has_kernels());
  const auto stream = device->make_stream();
  std::vector<float> a(10, 3.0F), b(5, 4.0F), packed(17);
  const std::vector<Piece> pieces = {{a.data(), 10}, {b.data(), 5}};
  device->pack(*stream, {}, pieces, packed.data());
  std::vector<float> c(10), d(5);
  const std::vector<Piece> back = {{c.data(), 10}, {d.data(), 5}};
  device->unpack(*stream, {}, packed.data(), back);
  device->synchronize(*device->record(*stream));
  EXPECT_EQ(c, a);
  EXPECT_EQ(d, b);
  EXPECT_THROW(device->pack(*stream, {.scale = {2.0, 1.0, 1}}, pieces, packed.data()), Error);
}

}  // namespace
}  // namespace perseus
