#include "bootstrap/selection.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "bootstrap/choose.h"

namespace perseus::testing {
namespace {

std::string refusal(const std::vector<int>& selection, int rank, int size) {
  try {
    rank_in_selection(selection, rank, size);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return error.what();
  }
  return "none";
}

TEST(Selection, IsNoneIfEmptyOrAllRanksInOrder) {
  EXPECT_TRUE(selects_all({}, 3));
  EXPECT_TRUE(selects_all({0, 1, 2}, 3));
  EXPECT_FALSE(selects_all({0, 2, 1}, 3));
  EXPECT_FALSE(selects_all({0, 1}, 3));
}

TEST(Selection, NumbersRanksByTheirOrder) {
  EXPECT_EQ(rank_in_selection({3, 1}, 3, 4), 0);
  EXPECT_EQ(rank_in_selection({3, 1}, 1, 4), 1);
}

TEST(Selection, RejectsInvalidSelections) {
  EXPECT_NE(refusal({0, 4}, 0, 4).find("names rank 4"), std::string::npos);
  EXPECT_NE(refusal({-1, 0}, 0, 4).find("names rank -1"), std::string::npos);
  EXPECT_NE(refusal({1, 1}, 1, 4).find("twice"), std::string::npos);
  EXPECT_NE(refusal({0, 1}, 2, 4).find("rank 2, which is not among them"), std::string::npos);
}

TEST(Selection, OfASingleProcess) {
  BootstrapOptions options;
  options.selection = {0};
  EXPECT_EQ(choose_bootstrap(options)->size(), 1);
  options.selection = {1};
  EXPECT_THROW(choose_bootstrap(options), Error);
}

}  // namespace
}  // namespace perseus::testing
