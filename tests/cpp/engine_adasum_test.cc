// Tests that Adasum over every transport gives the same bits on all ranks and the values of its definition.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/execute/adasum.h"
#include "transport_world.h"

namespace perseus {
namespace {

using testing::Ranks;
using testing::run_world;
using testing::World;
using Vector = std::vector<double>;

class Adasum : public ::testing::TestWithParam<std::tuple<Ranks, int>> {};
INSTANTIATE_TEST_SUITE_P(OneHost, Adasum,
                         ::testing::Combine(::testing::Values(Ranks::threads), ::testing::Values(1, 2, 3, 4, 5)));
INSTANTIATE_TEST_SUITE_P(Mpi, Adasum, ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(SeveralHosts, Adasum,
                         ::testing::Combine(::testing::Values(Ranks::hosts), ::testing::Values(3, 4, 5)));

std::vector<float> contribution(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector of_two(const Vector& a, const Vector& b) {
  const double ab = dot(a, b), aa = dot(a, a), bb = dot(b, b);
  Vector result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    result[i] = (aa > 0 ? 1 - ab / aa / 2 : 1) * a[i] + (bb > 0 ? 1 - ab / bb / 2 : 1) * b[i];
  }
  return result;
}

Vector expected(std::size_t begin, std::size_t end, std::size_t total, int ranks) {
  std::vector<Vector> vectors;
  for (int r = 0; r < ranks; ++r) {
    const auto all = contribution(r, total);
    vectors.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(begin),
                         all.begin() + static_cast<std::ptrdiff_t>(end));
  }
  while (vectors.size() > 1) {
    std::vector<Vector> next;
    for (std::size_t i = 0; i + 1 < vectors.size(); i += 2) next.push_back(of_two(vectors[i], vectors[i + 1]));
    if (vectors.size() % 2 == 1) next.push_back(vectors.back());
    vectors = std::move(next);
  }
  return vectors.front();
}

TEST_P(Adasum, MatchesTheDefinition) {
  const auto [kind, size] = GetParam();
  run_world(kind, size, [](World& world) {
    auto link = world.connect_all();
    const std::vector<std::size_t> lengths = {3, 0, 70'000, 64, 1};
    std::size_t total = 0;
    for (const auto length : lengths) total += length;
    auto values = contribution(world.rank, total);
    std::vector<Piece> pieces;
    std::size_t at = 0;
    for (const auto length : lengths) {
      pieces.push_back({values.data() + at, static_cast<std::int64_t>(length)});
      at += length;
    }
    const auto status = adasum(*link.transport, {}, pieces, pieces);
    ASSERT_TRUE(status.ok()) << status.text();
    at = 0;
    for (const auto length : lengths) {
      const auto wanted = expected(at, at + length, total, world.size);
      for (std::size_t i = 0; i < length; ++i) ASSERT_NEAR(values[at + i], wanted[i], 1e-5) << at << " + " << i;
      at += length;
    }
    const auto all = world.exchange({reinterpret_cast<const char*>(values.data()), total * sizeof(float)});
    for (const auto& other : all) EXPECT_TRUE(other == all.front());
  });
}

}  // namespace
}  // namespace perseus
