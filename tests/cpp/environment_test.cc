// Tests that variables can be set while other threads read the environment.
#include "base/environment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace perseus::testing {
namespace {

TEST(Environment, VariablesAreSetReplacedAndRemoved) {
  set_environment("PERSEUS_TEST_ONE", "1");
  EXPECT_STREQ(std::getenv("PERSEUS_TEST_ONE"), "1");
  set_environment("PERSEUS_TEST_ONE", "2");
  set_environment("PERSEUS_TEST_ON", "other");
  EXPECT_STREQ(std::getenv("PERSEUS_TEST_ONE"), "2");
  set_environment("PERSEUS_TEST_ONE", std::nullopt);
  EXPECT_EQ(std::getenv("PERSEUS_TEST_ONE"), nullptr);
  EXPECT_STREQ(std::getenv("PERSEUS_TEST_ON"), "other");
  setenv("PERSEUS_TEST_ON", "by the C library", 1);
  EXPECT_STREQ(std::getenv("PERSEUS_TEST_ON"), "by the C library");
  set_environment("PERSEUS_TEST_ON", std::nullopt);
}

// Another thread's getenv() may be anywhere in the table meanwhile. With two calls of setenv(), the address sanitizer
// would report that the first table was freed.
TEST(Environment, APublishedTableStaysReadable) {
  set_environment("PERSEUS_TEST_FIRST", "1");
  char** const table = environ;
  for (int i = 0; i < 100; ++i) set_environment("PERSEUS_TEST_" + std::to_string(i), std::string(100, 'x'));
  bool found = false;
  for (char** entry = table; *entry != nullptr; ++entry) found |= std::string_view(*entry) == "PERSEUS_TEST_FIRST=1";
  EXPECT_TRUE(found);
  set_environment("PERSEUS_TEST_FIRST", std::nullopt);
  for (int i = 0; i < 100; ++i) set_environment("PERSEUS_TEST_" + std::to_string(i), std::nullopt);
}

}  // namespace
}  // namespace perseus::testing
