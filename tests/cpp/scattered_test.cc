#include "transport/scattered.h"

#include <gtest/gtest.h>

namespace perseus {
namespace {

TEST(Scattered, ChunksEndAtAPieceOrAtAMultipleOfTheGrainInIt) {
  std::vector<float> one(1), large(1000), last(100);
  const std::vector<Piece> pieces = {{one.data(), 1}, {nullptr, 0}, {large.data(), 1000}, {last.data(), 100}};
  const Scattered scattered(pieces, sizeof(float));
  std::vector<std::int64_t> ends;
  for (std::int64_t begin = 0; begin < scattered.count(); begin = ends.back()) {
    ends.push_back(scattered.chunk_end(begin, 256, 64));
  }
  EXPECT_EQ(ends, (std::vector<std::int64_t>{193, 449, 705, 961, 1101}));
}

TEST(Scattered, AChunkIsNeverEmpty) {
  std::vector<float> values(1000);
  const std::vector<Piece> pieces = {{values.data(), 100}, {values.data() + 100, 900}};
  const Scattered scattered(pieces, sizeof(float));
  EXPECT_EQ(scattered.chunk_end(0, 30, 64), 30) << "less than the grain fits";
  EXPECT_EQ(scattered.chunk_end(90, 40, 64), 100) << "the rest of the piece";
  EXPECT_EQ(scattered.chunk_end(990, 10, 64), 1000);
}

}  // namespace
}  // namespace perseus
