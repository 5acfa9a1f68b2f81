// Tests what is specific to shared memory: several groups at once, lost peers, and reuse of memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "bootstrap/local/local.h"
#include "transport/shm/fabric.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using Clock = std::chrono::steady_clock;

Status reduce(Transport& transport, void* data, std::int64_t count) {
  const Piece piece{data, count};
  return transport.allreduce({}, {&piece, 1}, {&piece, 1});
}

TEST(ShmGroup, GroupsRunAtTheSameTime) {
  for (const auto kind : {Ranks::threads, Ranks::processes}) {
    run_world(kind, 4, [](World& world) {
      auto all = world.connect_all();
      auto low = world.connect({0, 1, 2});
      auto high = world.connect({1, 3});
      EXPECT_EQ(low.transport == nullptr, world.rank == 3);
      EXPECT_EQ(high.transport == nullptr, world.rank == 0 || world.rank == 2);
      // One thread per group, in no order between them.
      std::vector<std::thread> threads;
      for (auto* link : {&all, &low, &high}) {
        if (link->transport == nullptr) continue;
        threads.emplace_back([&transport = *link->transport] {
          for (int round = 0; round < 200; ++round) {
            std::vector<float> data(1U << (round % 15), 1.0F);
            ASSERT_TRUE(reduce(transport, data.data(), static_cast<std::int64_t>(data.size())).ok());
            ASSERT_EQ(data.front(), static_cast<float>(transport.size()));
            ASSERT_EQ(data.back(), static_cast<float>(transport.size()));
          }
        });
      }
      for (auto& thread : threads) thread.join();
    });
  }
}

TEST(ShmGroup, MemoryOfGroupsIsReused) {
  run_world(Ranks::threads, 3, [](World& world) {
    // More groups than fit into the arena at once.
    for (int round = 0; round < 300; ++round) {
      auto link = world.connect(round % 2 == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 2});
      if (link.transport == nullptr) continue;
      std::vector<float> data(50'000, 1.0F);
      ASSERT_TRUE(reduce(*link.transport, data.data(), 50'000).ok());
      ASSERT_EQ(data[49'999], static_cast<float>(link.transport->size()));
    }
  });
}

TEST(ShmGroup, ResultsHaveTheSameBitsOnAllRanksAndPaths) {
  run_world(Ranks::threads, 3, [](World& world) {
    const auto link = world.connect_all();
    for (const std::int64_t count : {100, 5000, 300'000}) {
      std::mt19937 random(static_cast<unsigned>(world.rank));
      std::normal_distribution<float> normal;
      std::vector<float> heap(static_cast<std::size_t>(count));
      for (auto& value : heap) value = normal(random);
      const auto bytes = heap.size() * sizeof(float);
      auto* arena = static_cast<float*>(world.fabric.allocate(bytes));
      std::memcpy(arena, heap.data(), bytes);
      ASSERT_TRUE(reduce(*link.transport, heap.data(), count).ok());
      ASSERT_TRUE(reduce(*link.transport, arena, count).ok());
      EXPECT_EQ(std::memcmp(arena, heap.data(), bytes), 0) << count;
      const std::string mine(reinterpret_cast<const char*>(arena), bytes);
      for (const auto& other : world.exchange(mine)) EXPECT_EQ(other, mine) << count;
      world.fabric.release(arena);
    }
  });
}

// All ranks reduce until one is killed; the others must notice soon in every kind of wait.
void check_kill(int size, int victim, std::int64_t count, bool in_arena) {
  const auto address = random_rendezvous_address();
  std::vector<int> children;
  for (int r = 0; r < size; ++r) {
    children.push_back(fork_rank([&, r] {
      LocalBootstrap bootstrap({.rank = r, .size = size, .address = address});
      Liveness liveness;
      const auto fabric = make_fabric(bootstrap, Topology::discover(bootstrap), liveness, small_options());
      World world{r, size, *fabric, [&](std::string_view mine) { return bootstrap.allgather(mine); }, liveness};
      const auto link = world.connect_all();
      std::vector<float> heap(static_cast<std::size_t>(count));
      auto* data = in_arena ? static_cast<float*>(fabric->allocate(heap.size() * sizeof(float))) : heap.data();
      Status status;
      for (int round = 0; status.ok() && round < 1'000'000; ++round) {
        if (r == victim && round == 20) raise(SIGKILL);
        status = reduce(*link.transport, data, count);
      }
      EXPECT_EQ(status.kind(), ErrorKind::peer_lost);
      EXPECT_NE(status.text().find("rank " + std::to_string(victim) + " ended"), std::string::npos) << status.text();
      // The group has failed, so later calls do not wait.
      EXPECT_FALSE(link.transport->barrier().ok());
    }));
  }
  ASSERT_EQ(waitpid(children[static_cast<std::size_t>(victim)], nullptr, 0),
            children[static_cast<std::size_t>(victim)]);
  const auto killed = Clock::now();
  for (int r = 0; r < size; ++r) {
    if (r == victim) continue;
    EXPECT_TRUE(ended_well(children[static_cast<std::size_t>(r)])) << "rank " << r;
  }
  // A generous limit, because the test detects hanging. The documented time is a second or two.
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(60));
}

TEST(ShmGroup, AKilledPeerEndsSmallAllreduces) { check_kill(2, 1, 10, false); }
TEST(ShmGroup, AKilledPeerEndsPipelines) { check_kill(2, 0, 3'000'000, false); }
TEST(ShmGroup, AKilledPeerEndsSlices) { check_kill(4, 2, 3'000'000, false); }
TEST(ShmGroup, AKilledPeerEndsWorkInTheArena) { check_kill(3, 0, 2'000'000, true); }

TEST(ShmGroup, AWaitingRankUsesNoProcessor) {
  run_world(Ranks::processes, 2, [](World& world) {
    const auto link = world.connect_all();
    ASSERT_TRUE(link.transport->barrier().ok());
    if (world.rank == 1) usleep(1'000'000);  // the time for which rank 0 waits, not a synchronization
    rusage before{}, after{};
    getrusage(RUSAGE_THREAD, &before);
    ASSERT_TRUE(link.transport->barrier().ok());
    getrusage(RUSAGE_THREAD, &after);
    const auto used = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1'000'000 + after.ru_utime.tv_usec -
                      before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    EXPECT_LT(used, 50'000) << "microseconds of processor time";
  });
}

TEST(ShmFabric, ALimitedAddressSpaceMakesASmallerArena) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer alone needs more address space than the limit allows";
#endif
  const auto address = random_rendezvous_address();
  fork_ranks(2, [&](int r) {
    const rlimit limit{std::size_t{4} << 30, std::size_t{4} << 30};
    if (r == 1) {
      ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    }
    LocalBootstrap bootstrap({.rank = r, .size = 2, .address = address});
    Liveness liveness;
    const auto fabric = make_fabric(bootstrap, Topology::discover(bootstrap), liveness);
    World world{r, 2, *fabric, [&](std::string_view mine) { return bootstrap.allgather(mine); }, liveness};
    const auto link = world.connect_all();
    EXPECT_EQ(fabric->allocate(std::size_t{1} << 30), nullptr);
    void* memory = fabric->allocate(1 << 20);
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(reduce(*link.transport, memory, 1 << 18).ok());
    fabric->announce_shutdown();
  });
}

TEST(ShmFabric, NoAddressSpaceIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer itself ends the process when it gets no more address space";
#endif
  const auto address = random_rendezvous_address();
  fork_ranks(2, [&](int r) {
    FabricOptions options;
    options.local_transport = LocalTransport::shm;
    options.arena_bytes = std::size_t{1} << 46;
    const rlimit limit{std::size_t{100} << 20, std::size_t{100} << 20};
    if (r == 0) {
      ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    }
    LocalBootstrap bootstrap({.rank = r, .size = 2, .address = address});
    Liveness liveness;
    const auto topology = Topology::discover(bootstrap);
    try {
      make_fabric(bootstrap, topology, liveness, options);
      ADD_FAILURE() << "the call must raise an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unavailable);
      EXPECT_NE(std::string(error.what()).find("ulimit -v"), std::string::npos) << error.what();
    }
  });
}

TEST(ShmFabric, NoDescriptorIsInheritedByPrograms) {
  run_world(Ranks::processes, 2, [](World& world) {
    const auto link = world.connect_all();
    // Every descriptor of the transport closes when the process executes another program.
    // NOLINTNEXTLINE(bugprone-command-processor): the command is a constant.
    EXPECT_EQ(system("ls -l /proc/self/fd | grep -c -e socket -e perseus > /dev/null"), 256);
    ASSERT_TRUE(link.transport->barrier().ok());
  });
}

// Counts beyond 2^31 elements.
TEST(ShmGroup, MoreThanTwoGiB) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs several times this memory";
#endif
  if (sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) < (std::int64_t{14} << 30)) {
    GTEST_SKIP() << "needs 14 GiB of free memory";
  }
  FabricOptions options;
  options.arena_bytes = std::size_t{4} << 30;
  run_world(
      Ranks::processes, 2,
      [](World& world) {
        const auto link = world.connect_all();
        const std::int64_t count = (std::int64_t{1} << 31) + 12'345;
        const Reduction sum{DType::uint8, DType::uint8, ReduceOp::sum, {}};
        for (const bool in_arena : {true, false}) {
          auto* data = static_cast<std::uint8_t*>(in_arena ? world.fabric.allocate(static_cast<std::size_t>(count))
                                                           : std::malloc(static_cast<std::size_t>(count)));
          ASSERT_NE(data, nullptr);
          std::memset(data, 1 + world.rank, static_cast<std::size_t>(count));
          data[count - 1] = 10;
          const Piece piece{data, count};
          const auto status = link.transport->allreduce(sum, {&piece, 1}, {&piece, 1});
          ASSERT_TRUE(status.ok()) << status.text();
          for (const auto at : {std::int64_t{0}, std::int64_t{1} << 31, count / 2 - 1, count / 2, count - 2}) {
            EXPECT_EQ(data[at], 3) << at;
          }
          EXPECT_EQ(data[count - 1], 20);
          if (in_arena) {
            world.fabric.release(data);
          } else {
            std::free(data);
          }
        }
      },
      options);
}

}  // namespace
}  // namespace perseus::testing
