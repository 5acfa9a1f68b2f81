// Tests that engines share threads, and that one engine does not block another.
#include "engine/engine_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/wait/blocking.h"
#include "engine_cases.h"
#include "engine_rank.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;
using testing::Case;
using testing::EngineRank;
using testing::hosts_of;
using testing::kGrace;
using testing::Ranks;
using testing::run;
using testing::run_world;
using testing::Started;
using testing::World;

std::vector<std::uint32_t> taken(ReadySet& set) {
  std::vector<std::uint32_t> numbers;
  set.take([&](std::uint32_t number) { numbers.push_back(number); });
  return numbers;
}

TEST(ReadySet, GivesEachNumberOnce) {
  ReadySet set;
  EXPECT_TRUE(taken(set).empty());
  const auto seen = set.doorbell().notifications();
  const std::vector<std::uint32_t> numbers{0, 63, 64, 1000, ReadySet::kNumbers - 1};
  for (const auto number : numbers) set.add(number);
  set.add(64);
  EXPECT_NE(set.doorbell().notifications(), seen);
  EXPECT_EQ(taken(set), numbers);
  EXPECT_TRUE(taken(set).empty());
}

TEST(ReadySet, HasADoorbellThatNoThreadPolls) {
  ReadySet set;
  Doorbell doorbell;
  doorbell.join(set, 7);
  doorbell.begin_polling();
  const auto seen = doorbell.notifications();
  doorbell.hand_back(seen);
  EXPECT_TRUE(taken(set).empty());
  doorbell.notify();
  doorbell.notify();
  EXPECT_EQ(taken(set), std::vector<std::uint32_t>{7});
  doorbell.hand_back(seen);  // these notifications were not seen
  EXPECT_EQ(taken(set), std::vector<std::uint32_t>{7});
}

// The ReadySet is where the other ranks of a host notify it. Late notifications may come, so it is never released.
std::shared_ptr<EngineThreads> threads_of(World& world) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<ReadySet*>;  // reachable also at the end, when leaks are looked for
  auto* const ready = new (world.fabric.allocate(sizeof(ReadySet))) ReadySet;
  const std::scoped_lock lock(mutex);
  kept.push_back(ready);
  return std::make_shared<EngineThreads>(*ready, -1);
}

EngineOptions options_with(const std::shared_ptr<EngineThreads>& threads) {
  EngineOptions options;
  options.threads = threads;
  return options;
}

int count_threads(const std::string& name) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    count += comm == name ? 1 : 0;
  }
  return count;
}

TEST(EngineThreads, ManyEnginesHaveOneThread) {
  run_world(Ranks::threads, 1, [](World& world) {
    const auto threads = threads_of(world);
    std::vector<std::unique_ptr<EngineRank>> sets;
    for (int i = 0; i < 50; ++i) sets.push_back(std::make_unique<EngineRank>(world, options_with(threads)));
    for (int round = 0; round < 3; ++round) {
      for (auto& set : sets) set->finish(*set->allreduce("x", 10), true);
    }
    EXPECT_EQ(count_threads("perseus-engines"), 1);
    EXPECT_EQ(count_threads("perseus-engine"), 0);
    for (auto& set : sets) set->engine().close(kGrace);
  });
}

// An engine whose pass blocks until it is let go.
class BlockingEngine final : public ServedEngine {
 public:
  Doorbell& doorbell() override { return doorbell_; }
  std::chrono::microseconds serve() override {
    const auto seen = doorbell_.notifications();
    if (blocks.load()) {
      before_blocking();
      is_blocked.store(true);
      is_blocked.notify_all();
      blocks.wait(true);
    }
    passes.fetch_add(1);
    passes.notify_all();
    doorbell_.hand_back(seen);
    return kForever;
  }

  std::atomic<bool> blocks{false}, is_blocked{false};
  std::atomic<int> passes{0};

 private:
  Doorbell doorbell_;
};

void wait_for_a_pass(BlockingEngine& engine) {
  const int before = engine.passes.load();
  engine.doorbell().notify();
  engine.passes.wait(before);
}

TEST(EngineThreads, AnEngineThatBlocksDoesNotBlockAnother) {
  ReadySet ready;
  EngineThreads threads(ready, -1);
  BlockingEngine first, second, third;
  for (auto* engine : {&first, &second, &third}) {
    threads.add(*engine);
    engine->passes.wait(0);
  }
  for (auto* engine : {&first, &second}) {
    engine->blocks.store(true);
    engine->doorbell().notify();
    engine->is_blocked.wait(false);
    wait_for_a_pass(third);
  }
  EXPECT_EQ(count_threads("perseus-engines"), 3);
  for (auto* engine : {&first, &second}) {
    engine->blocks.store(false);
    engine->blocks.notify_all();
    engine->passes.wait(1);
    wait_for_a_pass(*engine);
  }
  for (auto* engine : {&first, &second, &third}) threads.remove(*engine);
}

// An engine that is notified at the end of a pass, and returns once the thread that looks has seen that.
class LateNotifiedEngine final : public ServedEngine {
 public:
  explicit LateNotifiedEngine(BlockingEngine& other) : other_(other) {}
  Doorbell& doorbell() override { return doorbell_; }
  std::chrono::microseconds serve() override {
    const auto seen = doorbell_.notifications();
    const bool is_first = passes.load() == 0;
    if (is_first) before_blocking();
    doorbell_.hand_back(seen);
    if (is_first) {
      doorbell_.notify();
      wait_for_a_pass(other_);
    }
    passes.fetch_add(1);
    passes.notify_all();
    return kForever;
  }

  std::atomic<int> passes{0};

 private:
  BlockingEngine& other_;
  Doorbell doorbell_;
};

TEST(EngineThreads, ANotificationAtTheEndOfAPassIsServed) {
  ReadySet ready;
  EngineThreads threads(ready, -1);
  BlockingEngine other;
  threads.add(other);
  other.passes.wait(0);
  LateNotifiedEngine engine(other);
  threads.add(engine);
  engine.passes.wait(0);
  engine.passes.wait(1);
  EXPECT_EQ(engine.passes.load(), 2);
  threads.remove(engine);
  threads.remove(other);
}

class SharedThreads : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(OneHost, SharedThreads,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(2, 3)));
INSTANTIATE_TEST_SUITE_P(Mpi, SharedThreads,
                         ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(2, 4)));
INSTANTIATE_TEST_SUITE_P(SeveralHosts, SharedThreads,
                         ::testing::Combine(::testing::Values(Ranks::hosts, Ranks::hosts_with_outboxes),
                                            ::testing::Values(4)));

// Ranks begin the collectives of several sets in different orders, so a rank that executes only one at a time waits for
// another one that waits for it.
TEST_P(SharedThreads, SetsOfTheSameRanksOverlap) {
  run(GetParam(), [hosts = hosts_of(GetParam())](World& world) {
    std::mt19937 random(static_cast<unsigned>(world.rank));
    const auto threads = threads_of(world);
    std::vector<std::unique_ptr<EngineRank>> sets;
    for (int i = 0; i < 5; ++i) sets.push_back(std::make_unique<EngineRank>(world, options_with(threads), hosts));
    std::vector<std::size_t> order{0, 1, 2, 3, 4};
    for (int round = 0; round < 20; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::pair<std::size_t, std::unique_ptr<Started>>> started;
      for (const auto set : order) started.emplace_back(set, sets[set]->allreduce("x", 100));
      for (const auto set : order)
        started.emplace_back(set, sets[set]->allreduce("large", round % 5 == 0 ? 200'000 : 7));
      for (auto& [set, work] : started) sets[set]->finish(*work, round % 4 != 0);
    }
    for (auto& set : sets) set->engine().close(kGrace);
  });
}

}  // namespace
}  // namespace perseus
