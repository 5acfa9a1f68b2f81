// Tests the replacement of the launcher during MPI_Init: its answers, and its end if a rank is missing.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/mpi/pmi.h"
#include "transport/mpi/pmi_server.h"
#include "transport/mpi/world_agreement.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using mpi::PmiAnswers;
using mpi::PmiServer;
using mpi::process_mapping;
using namespace std::chrono_literals;
using Parts = std::vector<std::string>;

TEST(ProcessMapping, StatesWhichRanksShareAHost) {
  EXPECT_EQ(process_mapping({0, 1}), "(vector,(0,2,1))");
  EXPECT_EQ(process_mapping({0, 0, 1, 1, 2, 2}), "(vector,(0,3,2))");
  EXPECT_EQ(process_mapping({0, 0, 0, 1}), "(vector,(0,1,3),(1,1,1))");
  EXPECT_EQ(process_mapping({0, 1, 0, 1}), "(vector,(0,2,1),(0,2,1))");
  EXPECT_EQ(process_mapping({0, 0}), "(vector,(0,1,2))");
  std::vector<int> scattered;
  for (int rank = 0; rank < 1000; ++rank) scattered.push_back(rank * 7 % 13);
  EXPECT_EQ(process_mapping(scattered), "") << "too long for a value";
}

TEST(PmiAnswers, ValuesOfAllRanksAreThereAfterABarrier) {
  std::string sent;
  PmiAnswers other({0, 1}, "job", [&](std::string_view mine) {
    sent = mine;
    return Parts{};
  });
  EXPECT_EQ(other.answer("cmd=put kvsname=perseus key=bc-1 value=an address = of two words"),
            "cmd=put_result rc=0 msg=success");
  other.answer("cmd=barrier_in");

  PmiAnswers answers({0, 1}, "job", [&](std::string_view mine) { return Parts{std::string(mine), sent}; });
  EXPECT_EQ(answers.answer("cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
  EXPECT_EQ(answers.answer("cmd=get_universe_size"), "cmd=universe_size size=2");
  EXPECT_EQ(answers.answer("cmd=get kvsname=perseus key=PMI_process_mapping"),
            "cmd=get_result rc=0 msg=success value=(vector,(0,2,1))");
  EXPECT_EQ(answers.answer("cmd=get kvsname=perseus key=bc-1"), "cmd=get_result rc=-1 msg=key_not_found value=unknown");
  EXPECT_EQ(answers.answer("cmd=barrier_in"), "cmd=barrier_out rc=0");
  EXPECT_EQ(answers.answer("cmd=get kvsname=perseus key=bc-1"),
            "cmd=get_result rc=0 msg=success value=an address = of two words");
  EXPECT_EQ(answers.answer("cmd=finalize"), "cmd=finalize_ack rc=0");
}

TEST(PmiAnswers, RequestsThatNeedALauncherAreRejected) {
  PmiAnswers answers({0, 1}, "job", [](std::string_view) { return Parts{}; });  // MPI has started
  EXPECT_EQ(answers.answer("cmd=barrier_in"), "cmd=barrier_out rc=0");
  EXPECT_EQ(answers.answer("mcmd=spawn"), std::nullopt);
  EXPECT_EQ(answers.answer("execname=a.out"), std::nullopt);
  EXPECT_NE(answers.answer("endcmd").value().find("rc=-1"), std::string::npos);
  EXPECT_NE(answers.answer("cmd=publish_name service=x port=y").value().find("rc=-1"), std::string::npos);
  EXPECT_NE(answers.answer("cmd=barrier_in group=0,1").value().find("rc=-1"), std::string::npos);
  EXPECT_EQ(answers.answer("cmd=abort exitcode=1"), std::nullopt);
  answers.answer("cmd=put kvsname=perseus key=late value=1");
  EXPECT_NE(answers.answer("cmd=barrier_in").value().find("rc=-1"), std::string::npos);
}

TEST(PmiAnswers, TruncatedBytesAreAnError) {
  PmiAnswers answers({0, 1}, "job", [](std::string_view) { return Parts{"", std::string(5, 'x')}; });
  EXPECT_THROW(answers.answer("cmd=barrier_in"), Error);
}

// Sends one request and reads one answer, as MPI does.
std::string ask(const std::string& question) {
  const int fd = std::stoi(getenv("PMI_FD"));
  const auto line = question + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return "";
  std::string answer;
  for (char byte = 0; read(fd, &byte, 1) == 1 && byte != '\n';) answer += byte;
  return answer;
}

TEST(PmiServer, TheEnvironmentIsRestoredAfterMpiInit) {
  setenv("PMI_RANK", "17", 1);
  setenv("PMIX_NAMESPACE", "outer", 1);
  unsetenv("PMI_SIZE");
  PmiServer server(1, {0, 1}, "job", [](std::string_view mine) { return Parts{"", std::string(mine)}; });
  std::string seen;
  server.run(
      [&] {
        seen = std::string(getenv("PMI_RANK")) + " of " + getenv("PMI_SIZE");
        EXPECT_EQ(getenv("PMIX_NAMESPACE"), nullptr);
        // Returns a text that is the same for the ranks of this job on a host, and different for all others.
        EXPECT_EQ(ask("cmd=get_my_kvsname"), "cmd=my_kvsname kvsname=job-1");
        EXPECT_EQ(ask("cmd=put kvsname=perseus key=a value=b"), "cmd=put_result rc=0 msg=success");
        EXPECT_EQ(ask("cmd=barrier_in"), "cmd=barrier_out rc=0");
        EXPECT_EQ(ask("cmd=get kvsname=perseus key=a"), "cmd=get_result rc=0 msg=success value=b");
      },
      60s);
  EXPECT_EQ(seen, "1 of 2");
  EXPECT_STREQ(getenv("PMI_RANK"), "17");
  EXPECT_STREQ(getenv("PMIX_NAMESPACE"), "outer");
  EXPECT_EQ(getenv("PMI_SIZE"), nullptr);
  EXPECT_EQ(getenv("PMI_FD"), nullptr);
  unsetenv("PMI_RANK");
  unsetenv("PMIX_NAMESPACE");
}

TEST(PmiServer, ForwardsExceptionsOfMpiInit) {
  PmiServer server(0, {0, 1}, "job", [](std::string_view) { return Parts{"", ""}; });
  EXPECT_THROW(server.run([] { throw std::out_of_range("no network"); }, 60s), std::out_of_range);
}

// A thread that stays in MPI_Init until the test ends, as MPI would.
struct Stuck {
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  void stay() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return may_end; });
  }
};

// Runs in a process that ends with its threads, because other tests fork and need a process without them.
void run_abandonable(const std::function<void()>& body) { EXPECT_TRUE(testing::ended_well(testing::fork_rank(body))); }

TEST(PmiServer, AMissingRankEndsTheWait) {
  run_abandonable([] {
    auto* server =
        new PmiServer(0, {0, 1}, "job", [](std::string_view) -> Parts { throw std::length_error("no rank 1"); });
    EXPECT_THROW(server->run([] { ask("cmd=barrier_in"); }, 60s), std::length_error);
    // `server` stays, because MPI_Init still waits for its answer and would end the process after an error.
  });
}

TEST(PmiServer, AnMpiInitWithoutProgressIsAbandoned) {
  run_abandonable([] {
    const auto stuck = std::make_shared<Stuck>();
    auto* server = new PmiServer(3, {0, 0, 1, 1}, "job", [](std::string_view) { return Parts{}; });
    try {
      server->run([stuck] { stuck->stay(); }, 50ms);
      FAIL() << "the call returned before MPI_Init ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::timed_out);
      EXPECT_NE(std::string(error.what()).find("MPI_Init of rank 3"), std::string::npos) << error.what();
    }
  });
}

MpiRendezvous rendezvous_with(const mpi::RankState& others) {
  MpiRendezvous rendezvous{.rank = 0, .hosts = {0, 1}, .host_names = {"one", "two"}, .exchange = nullptr};
  rendezvous.exchange = [others](std::string_view mine) {
    std::string theirs;
    MpiRendezvous echo{.rank = 0, .hosts = {0}, .host_names = {"two"}, .exchange = nullptr};
    echo.exchange = [&](std::string_view text) {
      theirs = text;
      return Parts{std::string(text)};
    };
    try {
      mpi::agree(echo, others);
    } catch (const Error&) {
    }
    return Parts{std::string(mine), theirs};
  };
  return rendezvous;
}

std::string refusal(const mpi::RankState& mine, const mpi::RankState& others) {
  try {
    mpi::agree(rendezvous_with(others), mine);
    return "agreed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    return error.what();
  }
}

TEST(MpiWorldAgreement, AllRanksUseOneWorldOrNone) {
  const mpi::RankState fresh{
      .problem = "", .version = "MPICH 5.0.2", .world = "", .rank_in_world = -1, .fresh_world = "a"};
  auto other = fresh;
  other.fresh_world = "b";
  auto agreed = mpi::agree(rendezvous_with(other), fresh);
  EXPECT_EQ(agreed.world, "a");
  EXPECT_TRUE(agreed.ranks.empty());

  auto old = fresh, old_other = other;
  old.world = old_other.world = "w";
  old.rank_in_world = 3;
  old_other.rank_in_world = 1;
  agreed = mpi::agree(rendezvous_with(old_other), old);
  EXPECT_EQ(agreed.world, "w");
  EXPECT_EQ(agreed.ranks, (std::vector<int>{3, 1}));

  EXPECT_NE(refusal(old, other).find("rank 1 on two have not been in the same jobs"), std::string::npos);
  other.version = "Intel MPI 2021.18";
  EXPECT_NE(refusal(fresh, other).find("rank 1 on two has Intel MPI 2021.18"), std::string::npos);
  other.problem = "no libmpi\nanywhere";
  EXPECT_NE(refusal(fresh, other).find("rank 1 on two: no libmpi\nanywhere"), std::string::npos);
}

}  // namespace
}  // namespace perseus::testing
