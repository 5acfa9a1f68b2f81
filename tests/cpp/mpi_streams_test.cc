// What each MPI needs to be told for several streams, and where it stays at one.
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

const StreamWish kMpich{.count = 4, .version = "MPICH 5.0.2", .device = "ch4:ucx ofi"};
const StreamWish kIntel{.count = 4, .version = "Intel(R) MPI Library 2021.18", .device = ""};

Variables variables_of(const Streams& streams) { return {streams.variables.begin(), streams.variables.end()}; }

void expect_one(const StreamWish& wish, const Variables& variables, const std::string& why) {
  const auto streams = plan_streams(wish, environment_of(variables));
  EXPECT_EQ(streams.count, 1);
  EXPECT_TRUE(streams.variables.empty());
  EXPECT_NE(streams.why_one.find(why), std::string::npos) << streams.why_one;
}

TEST(MpiStreams, MpichHasOneInterfaceMoreThanStreams) {
  const auto streams = plan_streams(kMpich, environment_of({}));
  EXPECT_EQ(streams.count, 4);
  EXPECT_EQ(variables_of(streams),
            (Variables{{"MPIR_CVAR_CH4_NETMOD", "ofi"}, {"FI_PROVIDER", "tcp"}, {"MPIR_CVAR_CH4_NUM_VCIS", "5"}}));
}

TEST(MpiStreams, WhatTheUserHasSetStays) {
  const auto fewer = plan_streams(kMpich, environment_of({{"MPIR_CVAR_CH4_NUM_VCIS", "3"}}));
  EXPECT_EQ(fewer.count, 2);
  EXPECT_FALSE(variables_of(fewer).contains("MPIR_CVAR_CH4_NUM_VCIS"));
  expect_one(kMpich, {{"MPIR_CVAR_CH4_NUM_VCIS", "1"}}, "MPIR_CVAR_CH4_NUM_VCIS is 1");
  expect_one(kMpich, {{"MPIR_CVAR_CH4_NETMOD", "ucx"}}, "MPIR_CVAR_CH4_NETMOD is ucx");
  expect_one(kMpich, {{"FI_PROVIDER", "psm3"}}, "FI_PROVIDER is psm3");
  expect_one(kIntel, {{"I_MPI_THREAD_SPLIT", "0"}}, "I_MPI_THREAD_SPLIT is 0");
  EXPECT_EQ(plan_streams(kIntel, environment_of({{"I_MPI_THREAD_MAX", "2"}})).count, 2);
}

TEST(MpiStreams, IntelSplitsItsThreads) {
  EXPECT_EQ(variables_of(plan_streams(kIntel, environment_of({}))),
            (Variables{{"I_MPI_THREAD_SPLIT", "1"}, {"I_MPI_THREAD_RUNTIME", "generic"}, {"I_MPI_THREAD_MAX", "4"}}));
}

TEST(MpiStreams, OthersHaveOneAndSayWhy) {
  expect_one({.count = 4, .version = "Open MPI v5.0.11", .device = ""}, {}, "Open MPI v5.0.11 has one connection");
  expect_one({.count = 4, .version = "MPICH 4.0.2", .device = "ch4:ucx"}, {}, "without libfabric");
  expect_one({.count = 4, .version = "MPICH 3.4", .device = "ch3:nemesis"}, {}, "without libfabric");
}

TEST(MpiStreams, AFastNetworkIsLeftAlone) {
  auto wish = kMpich;
  wish.fast_network = true;
  expect_one(wish, {}, "faster than TCP");
  EXPECT_EQ(plan_streams(wish, environment_of({{"MPIR_CVAR_CH4_NETMOD", "ofi"}, {"FI_PROVIDER", "tcp"}})).count, 4);
}

TEST(MpiStreams, AnMpiThatRunsHasWhatItWasStartedWith) {
  for (auto wish : {kMpich, kIntel}) {
    wish.initialized = true;
    expect_one(wish, {}, "MPI was initialised by this program");
  }
  auto wish = kMpich;
  wish.initialized = true;
  const Variables set{{"MPIR_CVAR_CH4_NETMOD", "ofi"}, {"FI_PROVIDER", "tcp"}, {"MPIR_CVAR_CH4_NUM_VCIS", "9"}};
  EXPECT_EQ(plan_streams(wish, environment_of(set)).count, 4);
}

TEST(MpiStreams, OneNeedsNothing) {
  const auto streams = plan_streams({.count = 1, .version = "MPICH 5.0.2", .device = "ch4:ofi"}, environment_of({}));
  EXPECT_EQ(streams.count, 1);
  EXPECT_TRUE(streams.why_one.empty());
  EXPECT_TRUE(streams.variables.empty());
}

}  // namespace
}  // namespace perseus::mpi
