// Tests the detection of launchers by the variables that each of them sets, and contradictions among these.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "bootstrap/choose.h"
#include "bootstrap/launcher.h"

namespace perseus::testing {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

LauncherEnvironment environment_of(Variables variables) {
  LauncherEnvironment environment;
  environment.lookup = [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return environment;
}

struct Row {
  const char* name;
  Variables variables;
  LauncherKind kind;
  int rank, size;
};

class Detection : public ::testing::TestWithParam<Row> {};

TEST_P(Detection, NamesTheLauncher) {
  const auto& row = GetParam();
  const auto launcher = detect_launcher(environment_of(row.variables));
  EXPECT_EQ(launcher.kind, row.kind) << name_of(launcher.kind);
  EXPECT_EQ(launcher.rank, row.rank);
  EXPECT_EQ(launcher.size, row.size);
}

const Variables kMpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "9"}, {"HYDI_CONTROL_FD", "7"}};
const Variables kSrun = {{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}};

Variables with(Variables base, const Variables& more) {
  base.insert(more.begin(), more.end());
  return base;
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, Detection,
    ::testing::Values(
        Row{"Nobody", {{"PATH", "/usr/bin"}}, LauncherKind::none, -1, -1},
        Row{"Perseusrun",
            {{"PERSEUS_RANK", "0"}, {"PERSEUS_SIZE", "4"}, {"PERSEUS_RENDEZVOUS", "x"}},
            LauncherKind::perseusrun,
            0,
            4},
        Row{"OpenMpi5",
            {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "n"}},
            LauncherKind::openmpi,
            3,
            4},
        Row{"Prterun", {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-1"}}, LauncherKind::openmpi, 1, -1},
        Row{"Mpich", kMpich, LauncherKind::mpich, 1, 2},
        Row{"MpichWithIntelSettingsInTheProfile",
            with(kMpich, {{"I_MPI_ROOT", "/opt/intel"}, {"I_MPI_FABRICS", "shm"}}), LauncherKind::mpich, 1, 2},
        Row{"Intel",
            {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"I_MPI_HYDRA_UUID", "e3"}, {"I_MPI_MPIRUN", "mpirun"}},
            LauncherKind::intel,
            0,
            2},
        Row{"Mvapich", {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "8"}}, LauncherKind::mpich, 1, 8},
        Row{"SrunWithPmi2", with(kSrun, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_FD", "8"}}), LauncherKind::slurm,
            2, 4},
        Row{"SrunWithPmix", with(kSrun, {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "s"}}), LauncherKind::slurm, 2, 4},
        Row{"SrunWithoutPmi", kSrun, LauncherKind::slurm, 2, 4},
        Row{"MpichInsideSlurm", with(kSrun, kMpich), LauncherKind::mpich, 1, 2},
        Row{"ShellOfAnAllocation", {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}, LauncherKind::none, -1, -1},
        Row{"MpirunInsidePerseusrun",
            with(kMpich, {{"PERSEUS_RANK", "0"}, {"PERSEUS_SIZE", "1"}, {"PERSEUS_RENDEZVOUS", "x"}}),
            LauncherKind::mpich, 1, 2}),
    [](const auto& row) { return row.param.name; });

TEST(Launcher, ContradictionsAreErrors) {
  EXPECT_THROW(detect_launcher(environment_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}})), Error);
  EXPECT_THROW(detect_launcher(environment_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "two"}})), Error);
  EXPECT_THROW(detect_launcher(environment_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}})), Error);
  EXPECT_THROW(detect_launcher(environment_of({{"PERSEUS_SIZE", "2"}, {"PERSEUS_RENDEZVOUS", "x"}})), Error);
}

TEST(ChooseBootstrap, IsSingleWithoutALauncherAndForOneRank) {
  BootstrapOptions options;
  options.environment = environment_of({});
  EXPECT_EQ(choose_bootstrap(options)->name(), "single");
  options.environment = environment_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
  EXPECT_EQ(choose_bootstrap(options)->name(), "single");
}

TEST(ChooseBootstrap, ReportsThatSrunNeedsAPmi) {
  BootstrapOptions options;
  options.environment = environment_of(kSrun);
  try {
    choose_bootstrap(options);
    FAIL() << "a world of one rank was started without an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    EXPECT_NE(std::string(error.what()).find("--mpi=pmix"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace perseus::testing
