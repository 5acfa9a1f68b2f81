// Tests groups of ranks that share MPI's communicators.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/process_set_engine.h"
#include "mpi_fake.h"
#include "transport/messages/control_messages.h"
#include "transport/mpi/connections.h"
#include "transport/mpi/fabric.h"

namespace perseus::testing {
namespace {

// A job of one rank, whose control messages go over the fake libmpi.
struct Alone {
  Liveness liveness;
  FakeNetwork network;
  FakeApi api{network, 0, 1};
  messages::ClosingChannels closing_channels;
  std::unique_ptr<Fabric> fabric;

  explicit Alone(int last_tag = 1 << 20) : fabric(connect(last_tag)) {}

  std::unique_ptr<Fabric> connect(int last_tag) {
    api.set_last_tag(last_tag);
    return mpi::connect_by(api, 0, 1, closing_channels, {.liveness = &liveness}, std::chrono::milliseconds(0));
  }
  Link make_group() {
    const std::vector<int> members{0};
    return fabric->connect(members, [](std::string_view mine) { return std::vector{std::string(mine)}; });
  }
};

TEST(MpiFabric, GroupsOfCommonRanksHaveDifferentNumbers) {
  const std::vector<Group> groups{{.members = {0, 1, 2}}, {.members = {0, 1}}, {.members = {2, 3}}, {.members = {3}}};
  const std::map<int, mpi::Numbers> none{{0, ""}, {1, ""}, {2, ""}, {3, ""}};
  EXPECT_EQ(mpi::choose_numbers(groups, none), (std::vector<int>{0, 1, 1, 0}));
  const std::map<int, mpi::Numbers> used{{0, "\x01"}, {1, std::string("\0\x01", 2)}, {2, "\x02"}, {3, ""}};
  EXPECT_EQ(mpi::choose_numbers(groups, used), (std::vector<int>{2, 1, 0, 1}));
}

TEST(MpiFabric, ANumberIsUsedAgainOnceItsGroupIsClosed) {
  Alone job(3 * 16 - 1);  // tags of three groups
  std::vector<Link> groups;
  for (int i = 0; i < 3; ++i) groups.push_back(job.make_group());
  try {
    job.make_group();
    FAIL() << "there was a tag for a fourth group";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    EXPECT_NE(std::string(error.what()).find("allows 3 groups"), std::string::npos) << error.what();
  }
  groups.erase(groups.begin() + 1);
  groups.push_back(job.make_group());
  EXPECT_THROW(job.make_group(), Error);
}

TEST(MpiFabric, OneThreadLooksForTheMessagesOfAllIdleEngines) {
  constexpr int kSets = 5, kLooks = 3;
  Alone job;
  std::vector<std::unique_ptr<ProcessSetEngine>> engines;
  const std::vector<int> each{0};
  for (int set = 0; set < kSets; ++set) {
    engines.push_back(std::make_unique<ProcessSetEngine>(make_tree(0, each, each), job.make_group(), EngineOptions{},
                                                         job.liveness,
                                                         [](const Request&, Completion*) { return Status(); }));
  }
  // The engines go to sleep one after the other.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::map<std::thread::id, int> looks;
  do {
    looks = job.api.wait_for_looks(kLooks);
  } while (looks.size() > 1 && std::chrono::steady_clock::now() < until);
  EXPECT_EQ(looks.size(), 1U);
}

}  // namespace
}  // namespace perseus::testing
