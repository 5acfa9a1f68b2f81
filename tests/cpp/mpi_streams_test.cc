// Tests the variables that each MPI needs for several streams, and when only one is used.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "transport/mpi/streams.h"

namespace perseus::mpi {
namespace {

using Variables = std::map<std::string, std::string>;

LauncherEnvironment environment_of(const Variables& variables) {
  return {.lookup = [variables](std::string_view name) -> std::optional<std::string> {
            const auto found = variables.find(std::string(name));
            return found == variables.end() ? std::nullopt : std::optional(found->second);
          },
          .python_prefix = {}};
}

const StreamOptions kMpich{.count = 4, .version = "MPICH 5.0.2", .device = "ch4:ucx ofi"};
const StreamOptions kIntel{.count = 4, .version = "Intel(R) MPI Library 2021.18", .device = ""};

Variables variables_of(const Streams& streams) { return {streams.variables.begin(), streams.variables.end()}; }

void expect_one(const StreamOptions& options, const Variables& variables, const std::string& why) {
  const auto streams = plan_streams(options, environment_of(variables));
  EXPECT_EQ(streams.count, 1);
  EXPECT_TRUE(streams.variables.empty());
  EXPECT_NE(streams.why_one.find(why), std::string::npos) << streams.why_one;
}

TEST(MpiStreams, MpichNeedsOneMoreInterfaceThanStreams) {
  const auto streams = plan_streams(kMpich, environment_of({}));
  EXPECT_EQ(streams.count, 4);
  EXPECT_EQ(variables_of(streams), (Variables{{"MPIR_CVAR_CH4_NETMOD", "ofi"},
                                              {"FI_PROVIDER", "tcp"},
                                              {"MPIR_CVAR_CH4_NUM_VCIS", "5"},
                                              {"FI_TCP_MAX_RX_SIZE", "1024"}}));
}

TEST(MpiStreams, VariablesOfTheUserStay) {
  const auto fewer = plan_streams(kMpich, environment_of({{"MPIR_CVAR_CH4_NUM_VCIS", "3"}}));
  EXPECT_EQ(fewer.count, 2);
  EXPECT_FALSE(variables_of(fewer).contains("MPIR_CVAR_CH4_NUM_VCIS"));
  EXPECT_FALSE(variables_of(plan_streams(kMpich, environment_of({{"FI_TCP_MAX_RX_SIZE", "9000"}})))
                   .contains("FI_TCP_MAX_RX_SIZE"));
  expect_one(kMpich, {{"MPIR_CVAR_CH4_NUM_VCIS", "1"}}, "MPIR_CVAR_CH4_NUM_VCIS is 1");
  expect_one(kMpich, {{"MPIR_CVAR_CH4_NETMOD", "ucx"}}, "MPIR_CVAR_CH4_NETMOD is ucx");
  expect_one(kMpich, {{"FI_PROVIDER", "psm3"}}, "FI_PROVIDER is psm3");
  expect_one(kIntel, {{"I_MPI_THREAD_SPLIT", "0"}}, "I_MPI_THREAD_SPLIT is 0");
  EXPECT_EQ(plan_streams(kIntel, environment_of({{"I_MPI_THREAD_MAX", "2"}})).count, 2);
}

TEST(MpiStreams, IntelMpiUsesSplitThreads) {
  EXPECT_EQ(variables_of(plan_streams(kIntel, environment_of({}))),
            (Variables{{"I_MPI_THREAD_SPLIT", "1"}, {"I_MPI_THREAD_RUNTIME", "generic"}, {"I_MPI_THREAD_MAX", "4"}}));
}

TEST(MpiStreams, OtherMpisHaveOneStreamAndAReason) {
  expect_one({.count = 4, .version = "Open MPI v5.0.11", .device = ""}, {}, "Open MPI v5.0.11 has one connection");
  expect_one({.count = 4, .version = "MPICH 4.0.2", .device = "ch4:ucx"}, {}, "without libfabric");
  expect_one({.count = 4, .version = "MPICH 3.4", .device = "ch3:nemesis"}, {}, "without libfabric");
}

TEST(MpiStreams, AFastNetworkIsNotChanged) {
  auto options = kMpich;
  options.fast_network = true;
  expect_one(options, {}, "faster than TCP");
  EXPECT_EQ(plan_streams(options, environment_of({{"MPIR_CVAR_CH4_NETMOD", "ofi"}, {"FI_PROVIDER", "tcp"}})).count, 4);
}

TEST(MpiStreams, AnInitializedMpiKeepsItsStreams) {
  for (auto options : {kMpich, kIntel}) {
    options.initialized = true;
    expect_one(options, {}, "MPI was initialised by this program");
  }
  auto options = kMpich;
  options.initialized = true;
  const Variables set{{"MPIR_CVAR_CH4_NETMOD", "ofi"}, {"FI_PROVIDER", "tcp"}, {"MPIR_CVAR_CH4_NUM_VCIS", "9"}};
  EXPECT_EQ(plan_streams(options, environment_of(set)).count, 4);
}

TEST(MpiStreams, OneStreamNeedsNoVariables) {
  const auto streams = plan_streams({.count = 1, .version = "MPICH 5.0.2", .device = "ch4:ofi"}, environment_of({}));
  EXPECT_EQ(streams.count, 1);
  EXPECT_TRUE(streams.why_one.empty());
  EXPECT_TRUE(streams.variables.empty());
}

}  // namespace
}  // namespace perseus::mpi
