// Tests the ids of agreed requests. Names that are used only once get no id.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "control/response_cache.h"
#include "control_requests.h"

namespace perseus {
namespace {

using testing::allreduce;
using testing::same;

// Does what the root does with an agreed request.
std::optional<std::uint32_t> agree(ResponseCache& cache, const Request& request) {
  const auto id = cache.choose_id(request);
  if (id) cache.put(*id, std::make_shared<const Request>(request));
  return id;
}

TEST(ResponseCache, ASecondAgreementGivesAnId) {
  ResponseCache cache(4);
  EXPECT_EQ(agree(cache, allreduce("a")), std::nullopt);
  EXPECT_EQ(cache.find(allreduce("a")), std::nullopt);
  EXPECT_EQ(agree(cache, allreduce("a")), 0U);
  EXPECT_EQ(cache.find(allreduce("a")), 0U);
  EXPECT_TRUE(same(cache.at(0), allreduce("a")));
}

TEST(ResponseCache, AnotherShapeKeepsTheId) {
  ResponseCache cache(4);
  agree(cache, allreduce("a"));
  agree(cache, allreduce("a"));
  EXPECT_EQ(cache.find(allreduce("a", {9})), std::nullopt);
  EXPECT_EQ(agree(cache, allreduce("a", {9})), 0U);
  EXPECT_EQ(cache.find(allreduce("a")), std::nullopt);
  EXPECT_EQ(cache.find(allreduce("a", {9})), 0U);
}

TEST(ResponseCache, NamesUsedOnceTakeNoPlace) {
  ResponseCache cache(1);
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(agree(cache, allreduce("allreduce.noname." + std::to_string(i))), std::nullopt);
  agree(cache, allreduce("w"));
  EXPECT_EQ(agree(cache, allreduce("w")), 0U);
}

TEST(ResponseCache, AFullCacheKeepsNamesThatAreUsed) {
  ResponseCache cache(2);
  for (const auto* name : {"a", "a", "b", "b"}) agree(cache, allreduce(name));
  for (int i = 0; i < 20; ++i) {
    cache.mark_used(0);
    cache.mark_used(1);
    EXPECT_EQ(agree(cache, allreduce("c" + std::to_string(i % 3))), std::nullopt);
  }
  EXPECT_EQ(cache.find(allreduce("a")), 0U);
  EXPECT_EQ(cache.find(allreduce("b")), 1U);
}

TEST(ResponseCache, AFullCacheGivesTheIdsOfUnusedNamesToOthers) {
  ResponseCache cache(2);
  for (const auto* name : {"a", "a", "b", "b"}) agree(cache, allreduce(name));
  for (int i = 0; i < 5; ++i) {
    cache.mark_used(0);
    agree(cache, allreduce("c"));
  }
  EXPECT_EQ(cache.find(allreduce("a")), 0U);
  EXPECT_EQ(cache.find(allreduce("c")), 1U);
  EXPECT_EQ(cache.find(allreduce("b")), std::nullopt);
  EXPECT_EQ(cache.id_of("b"), std::nullopt);
}

TEST(ResponseCache, CapacityZeroDisablesTheCache) {
  ResponseCache cache(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(agree(cache, allreduce("a")), std::nullopt);
}

TEST(ResponseCache, UnknownIdsAreAnError) {
  ResponseCache cache(4);
  EXPECT_THROW(cache.at(0), Error);
  EXPECT_THROW(cache.put(1, std::make_shared<const Request>(allreduce("a"))), Error);
}

}  // namespace
}  // namespace perseus
