// Tests the choice of a bootstrap by the launcher of the process.
#include <gtest/gtest.h>

#include "base/error.h"
#include "bootstrap/choose.h"
#include "bootstrap/local/launcher.h"

namespace perseus::testing {
namespace {

TEST(ChooseBootstrap, IsSingleWithoutALauncherAndForOneRank) {
  BootstrapOptions options;
  EXPECT_EQ(choose_bootstrap(options)->name(), "single");
  options.launcher = {launcher_kind("mpich"), 0, 1, "PMI_SIZE=1", ""};
  EXPECT_EQ(choose_bootstrap(options)->name(), "single");
}

TEST(LauncherKind, IsFoundByItsName) {
  EXPECT_EQ(launcher_kind("none"), LauncherKind::none);
  EXPECT_EQ(launcher_kind("intel"), LauncherKind::intel);
  EXPECT_EQ(launcher_kind("slurm"), LauncherKind::slurm);
  EXPECT_THROW(launcher_kind("cron"), Error);
}

}  // namespace
}  // namespace perseus::testing
