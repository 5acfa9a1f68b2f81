// Tests the rendezvous of the ranks of a host, and their watch.
#include "bootstrap/local/local_rendezvous.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <future>
#include <thread>

#include "base/error.h"
#include "bootstrap/local/local.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs the body on one thread per rank of a rendezvous.
void on_star(int size, const std::function<void(LocalRendezvous&)>& body) {
  const auto address = random_rendezvous_address();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      LocalRendezvous rendezvous(address, r, size, seconds(30));
      body(rendezvous);
    });
  }
  for (auto& thread : threads) thread.join();
}

// Returns the kind and text of the Error that the body throws.
std::pair<ErrorKind, std::string> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {ErrorKind::shut_down, "nothing was thrown"};
}

TEST(LocalRendezvous, GathersBytesOfAnyLength) {
  for (const int size : {1, 2, 5}) {
    on_star(size, [&](LocalRendezvous& rendezvous) {
      for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{3'000'000}}) {
        const auto all = rendezvous.allgather(std::string(length, static_cast<char>('a' + rendezvous.rank())));
        ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r) {
          EXPECT_EQ(all[static_cast<std::size_t>(r)], std::string(length, static_cast<char>('a' + r)));
        }
      }
    });
  }
}

TEST(LocalRendezvous, GathersFileDescriptors) {
  on_star(3, [](LocalRendezvous& rendezvous) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const char mine = static_cast<char>('0' + rendezvous.rank());
    for (int i = 0; i < rendezvous.size(); ++i) ASSERT_EQ(write(ends[1], &mine, 1), 1);
    const auto all = rendezvous.exchange_fds(ends[0]);
    for (int r = 0; r < rendezvous.size(); ++r) {
      char byte = 0;
      ASSERT_EQ(read(all[static_cast<std::size_t>(r)].get(), &byte, 1), 1);
      EXPECT_EQ(byte, '0' + r);
    }
    rendezvous.allgather("");  // no rank closes before all have read
    close(ends[0]);
    close(ends[1]);
  });
}

TEST(LocalRendezvous, NamesTheMissingRanks) {
  const auto address = random_rendezvous_address();
  std::thread third([&] {
    const auto [kind, text] = error_of([&] { LocalRendezvous(address, 2, 4, seconds(60)); });
    EXPECT_EQ(kind, ErrorKind::timed_out);
    EXPECT_NE(text.find("missing: rank 1, 3"), std::string::npos) << text;
  });
  // The third rank retries and connects within this time.
  const auto [kind, text] = error_of([&] { LocalRendezvous(address, 0, 4, milliseconds(2500)); });
  EXPECT_EQ(kind, ErrorKind::timed_out);
  EXPECT_NE(text.find("only 2 of 4 ranks of this host connected within 2.5 s; missing: rank 1, 3"), std::string::npos)
      << text;
  third.join();
}

TEST(LocalRendezvous, ReportsAMissingRankZero) {
  const auto [kind, text] = error_of([&] { LocalRendezvous(random_rendezvous_address(), 1, 2, milliseconds(50)); });
  EXPECT_EQ(kind, ErrorKind::timed_out);
  EXPECT_NE(text.find("found no rank 0"), std::string::npos) << text;
}

TEST(LocalRendezvous, StopsWaitingOnceItIsCancelled) {
  for (const int rank : {0, 1}) {
    const UniqueFd cancel_fd(eventfd(0, EFD_CLOEXEC));
    std::thread caller([&] { eventfd_write(cancel_fd.get(), 1); });
    const auto [kind, text] =
        error_of([&] { LocalRendezvous(random_rendezvous_address(), rank, 2, seconds(60), cancel_fd.get()); });
    caller.join();
    EXPECT_EQ(kind, ErrorKind::peer_lost) << text;
  }
}

TEST(LocalRendezvous, ReportsTwoProcessesWithOneRank) {
  const auto address = random_rendezvous_address();
  const auto claim = [&] { LocalRendezvous(address, 1, 3, seconds(20)); };
  std::string texts[2];
  std::thread first([&] { texts[0] = error_of(claim).second; });
  std::thread second([&] { texts[1] = error_of(claim).second; });
  const auto text = error_of([&] { LocalRendezvous(address, 0, 3, seconds(20)); }).second;
  first.join();
  second.join();
  EXPECT_NE(text.find("rank 1 of 3, but that rank has already connected"), std::string::npos) << text;
  for (const auto& each : texts) EXPECT_NE(each.find("has already connected"), std::string::npos) << each;
}

TEST(LocalBootstrap, StartsAgainInTheSameProcess) {
  const auto address = random_rendezvous_address();
  for (int generation = 0; generation < 3; ++generation) {
    const auto meet = [&](int rank) {
      LocalBootstrap bootstrap({.rank = rank, .size = 2, .address = address, .generation = generation});
      EXPECT_EQ(bootstrap.allgather(std::to_string(rank)), (std::vector<std::string>{"0", "1"}));
    };
    std::thread other([&] { meet(1); });
    meet(0);
    other.join();
  }
}

// Runs processes of which `victim` ends by `how`; the others return what they learn.
void check_loss(int victim, const std::function<void()>& how, const std::string& expected) {
  constexpr int kSize = 3;
  const auto address = random_rendezvous_address();
  std::vector<int> children;
  for (int r = 0; r < kSize; ++r) {
    children.push_back(fork_rank([&, r] {
      Liveness liveness;
      LocalRendezvous rendezvous(address, r, kSize, seconds(30));
      rendezvous.allgather("");
      rendezvous.watch(liveness, {10, 11, 12});
      if (r == victim) return how();
      EXPECT_EQ(wait_for_loss(liveness), expected);
    }));
  }
  for (int r = 0; r < kSize; ++r) {
    const int child = children[static_cast<std::size_t>(r)];
    if (r == victim) {
      waitpid(child, nullptr, 0);
    } else {
      EXPECT_TRUE(ended_well(child)) << "rank " << r;
    }
  }
}

constexpr auto kEnded = " ended without shutting down (it was killed, crashed, or left because of an error)";

TEST(LocalWatch, AllRanksLearnOfAKilledMember) {
  check_loss(2, [] { raise(SIGKILL); }, std::string("rank 12") + kEnded);
}
TEST(LocalWatch, AllRanksLearnOfAKilledFirstRank) {
  check_loss(0, [] { raise(SIGKILL); }, std::string("rank 10") + kEnded);
}
TEST(LocalWatch, AllRanksLearnOfAnExit) {
  check_loss(1, [] { _exit(3); }, std::string("rank 11") + kEnded);
}

TEST(LocalWatch, AllRanksLearnOfAFailedMember) {
  for (const int who : {0, 2}) {
    std::array<Liveness, 3> all;  // outlive the rendezvous
    on_star(3, [&](LocalRendezvous& rendezvous) {
      auto& liveness = all[static_cast<std::size_t>(rendezvous.rank())];
      rendezvous.allgather("");
      rendezvous.watch(liveness, {10, 11, 12});
      if (rendezvous.rank() == who) liveness.report_lost(10 + who, "failed: the cable is out");
      EXPECT_EQ(wait_for_loss(liveness), "rank 1" + std::to_string(who) + " failed: the cable is out");
      rendezvous.announce_shutdown();
    });
  }
}

TEST(LocalWatch, AShutdownMessageIsNotALoss) {
  for (const int first : {0, 1, 2}) {
    std::promise<void> left;
    const auto gone = left.get_future().share();
    std::array<Liveness, 3> all;  // outlive the rendezvous
    on_star(3, [&](LocalRendezvous& rendezvous) {
      auto& liveness = all[static_cast<std::size_t>(rendezvous.rank())];
      rendezvous.allgather("");
      rendezvous.watch(liveness, {0, 1, 2});
      if (rendezvous.rank() == first) {
        rendezvous.announce_shutdown();
        left.set_value();
        return;
      }
      gone.wait();
      // Its end is seen after its shutdown message. If it had been taken for a death, the report would be here soon.
      std::promise<void> lost;
      liveness.on_lost([&] { lost.set_value(); });
      EXPECT_EQ(lost.get_future().wait_for(milliseconds(100)), std::future_status::timeout);
      rendezvous.announce_shutdown();
    });
  }
}

// The kernel limits the descriptors that an ordinary user's processes have sent and others have not received: to as
// many as the sender may open. Before each rank waited for the one before it, 20 ranks had 400 on their way.
TEST(LocalRendezvous, ManyRanksOfAnOrdinaryUserGatherDescriptors) {
  constexpr int kSize = 20;
  constexpr uid_t kOrdinaryUser = 54321;
  const auto address = random_rendezvous_address();
  fork_ranks(kSize, [&](int r) {
    const rlimit limit{64, 64};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const uid_t user = geteuid() == 0 ? kOrdinaryUser : geteuid();
    ASSERT_EQ(setresuid(user, user, user), 0);
    LocalRendezvous rendezvous(address, r, kSize, seconds(60));
    EXPECT_EQ(rendezvous.exchange_fds(0).size(), static_cast<std::size_t>(kSize));
  });
}

TEST(LocalRendezvous, TooFewDescriptorsAreNamed) {
  EXPECT_TRUE(ended_well(fork_rank([] {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    const auto soon = std::chrono::steady_clock::now() + seconds(60);
    ASSERT_EQ(send_fd(ends[0], 0, soon), IoResult::ok);
    const rlimit limit{64, 64};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    std::vector<UniqueFd> all;
    while (auto copy = UniqueFd(dup(0))) all.push_back(std::move(copy));
    UniqueFd received;
    const auto [kind, text] = error_of([&] { receive_fd(ends[1], received, soon); });
    EXPECT_EQ(kind, ErrorKind::unavailable);
    EXPECT_NE(text.find("64 descriptors: raise it (ulimit -n)"), std::string::npos) << text;
  })));
}

// More ranks connect than rank 0 may have connections, so each of them waits until it is told.
TEST(LocalRendezvous, TooFewDescriptorsForConnectionsAreNamedOnAllRanks) {
  constexpr int kSize = 24;
  const auto address = random_rendezvous_address();
  fork_ranks(kSize, [&](int r) {
    if (r == 0) {
      const auto next = UniqueFd(dup(0));
      const auto most = static_cast<rlim_t>(next.get()) + 5;
      const rlimit limit{most, most};
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    const auto [kind, text] = error_of([&] { LocalRendezvous(address, r, kSize, seconds(60)); });
    EXPECT_EQ(kind, ErrorKind::unavailable);
    EXPECT_NE(text.find("Too many open files; the limit is "), std::string::npos) << text;
  });
}

// The bootstrap uses the connections afterwards, and tells all ranks the reason.
TEST(LocalRendezvous, ALackOfDescriptorsIsReportedOnAllRanksAndLeavesTheConnectionsUsable) {
  constexpr int kSize = 3;
  for (int lacking = 0; lacking < kSize; ++lacking) {
    const auto address = random_rendezvous_address();
    fork_ranks(kSize, [&](int r) {
      LocalRendezvous rendezvous(address, r, kSize, seconds(60));
      if (r == lacking) {
        const auto next = UniqueFd(dup(0));
        const auto most = static_cast<rlim_t>(next.get()) + 1;  // room for one
        const rlimit limit{most, most};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      }
      const auto [kind, text] = error_of([&] { rendezvous.exchange_fds(0); });
      EXPECT_EQ(kind, ErrorKind::unavailable);
      EXPECT_EQ(text.find("descriptors of local rank " + std::to_string(lacking) + ": "), 0U) << text;
      EXPECT_EQ(rendezvous.allgather(std::to_string(r)), (std::vector<std::string>{"0", "1", "2"}));
    });
  }
}

TEST(LocalRendezvous, TheLimitOfDescriptorsIsRaised) {
  EXPECT_TRUE(ended_well(fork_rank([] {
    const rlimit low{64, 128};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    rlimit now{};
    make_room_for_descriptors(10);
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, 64U);
    make_room_for_descriptors(100);
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, 128U);
  })));
}

TEST(LocalWatch, AForkedChildDoesNotKeepTheConnectionOpen) {
  const auto address = random_rendezvous_address();
  int alive[2];  // the grandchild lives until this pipe is closed
  ASSERT_EQ(pipe(alive), 0);
  const int parent = fork_rank([&] {
    Liveness liveness;
    LocalRendezvous rendezvous(address, 1, 2, seconds(30));
    rendezvous.watch(liveness, {0, 1});
    if (fork() == 0) {
      rendezvous.close_after_fork();
      close(alive[1]);
      char byte = 0;
      _exit(read(alive[0], &byte, 1) == 0 ? 0 : 1);
    }
    raise(SIGKILL);
  });
  Liveness liveness;
  LocalRendezvous rendezvous(address, 0, 2, seconds(30));
  rendezvous.watch(liveness, {0, 1});
  EXPECT_EQ(wait_for_loss(liveness), std::string("rank 1") + kEnded);
  waitpid(parent, nullptr, 0);
  close(alive[0]);
  close(alive[1]);
}

}  // namespace
}  // namespace perseus::testing
