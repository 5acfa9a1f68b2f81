// Tests that memory which MPI or a peer may still use after a failure is neither freed nor reused.
#include "base/memory/lent_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda_fake.h"
#include "device/cuda/cuda_device.h"
#include "engine/execute/on_device.h"
#include "engine/process_set_engine.h"
#include "engine_rank.h"
#include "mpi_fake.h"
#include "transport/messages/channel.h"
#include "transport/messages/transport.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/connections.h"
#include "transport/shm/transport.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

TEST(LentMemory, IsFreedUnlessItWasLent) {
  const auto before = kept_lent_memory();
  {
    const LentVector<int> freed(10, 7);
  }
  EXPECT_EQ(kept_lent_memory(), before);
  auto lent = std::make_unique<LentVector<int>>(10, 7);
  const volatile int* memory = lent->data();
  keep_lent_memory();
  lent.reset();
  EXPECT_EQ(kept_lent_memory(), before + 1);
  EXPECT_EQ(memory[9], 7);
  {
    const LentVector<int> freed(10, 7);
  }
  EXPECT_EQ(kept_lent_memory(), before + 1);
}

TEST(LentMemory, IsAlignedAndZeroOnRequest) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{5} << 20}) {
    auto* const memory = static_cast<unsigned char*>(allocate_lent(bytes, true));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0U);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(memory[i], 0);
    free_lent(memory);
  }
  EXPECT_EQ(allocate_lent(SIZE_MAX - 10), nullptr);
}

// Allocates the memory that has just been freed, as the rest of a program would.
class Scavenger {
 public:
  Scavenger() {
    for (std::size_t bytes = 8; bytes <= 4096; bytes += 8) {
      for (int i = 0; i < 8; ++i) taken_.emplace_back(bytes, 'x');
    }
  }
  bool is_untouched() const {
    for (const auto& memory : taken_) {
      for (const char byte : memory) {
        if (byte != 'x') return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::vector<char>> taken_;
};

struct Collective {
  const char* name;
  std::int64_t count;  // floats of each rank
  std::function<Status(Transport&, float* data, std::int64_t count)> call;
  std::int64_t factor = 1;  // of `count` floats in `data`
};

const Collective kCollectives[] = {
    {"SmallAllreduce", 3,
     [](Transport& transport, float* data, std::int64_t count) {
       const Piece piece{data, count};
       return transport.allreduce({}, {&piece, 1}, {&piece, 1});
     }},
    {"LargeAllreduce", 1 << 18,
     [](Transport& transport, float* data, std::int64_t count) {
       const Piece piece{data, count};
       return transport.allreduce({}, {&piece, 1}, {&piece, 1});
     }},
    {"ReduceScatter", 200,
     [](Transport& transport, float* data, std::int64_t count) {
       const std::array<std::int64_t, 2> counts{count, count};
       return transport.reduce_scatter({}, data, data, counts);
     },
     2},
    {"Barrier", 1, [](Transport& transport, float*, std::int64_t) { return transport.barrier(); }},
};

class AbandonedReceives : public ::testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(Mpi, AbandonedReceives, ::testing::ValuesIn(kCollectives),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AbandonedReceives, WriteOnlyIntoTheirOwnMemory) {
  const auto& [name, count, call, factor] = GetParam();
  FakeNetwork network;
  FakeApi api(network, 0, 2);
  api.match_all();
  Liveness liveness;
  auto transport = std::make_unique<messages::MessageTransport>(mpi::make_network(api, {0}),
                                                                messages::WaitOptions{.liveness = &liveness});
  liveness.report_lost(1, "was killed");
  std::vector<float> data(static_cast<std::size_t>(factor * count));
  EXPECT_EQ(call(*transport, data.data(), count).kind(), ErrorKind::peer_lost);
  EXPECT_TRUE(transport->has_lent_memory());
  transport.reset();
  const Scavenger scavenger;
  EXPECT_GT(api.deliver_late(), 0U);
  EXPECT_TRUE(scavenger.is_untouched());
}

TEST(AbandonedReceive, LendsNoMemoryIfCancelled) {
  FakeNetwork network;
  FakeApi api(network, 0, 2);
  Liveness liveness;
  messages::MessageTransport transport(mpi::make_network(api, {0}), messages::WaitOptions{.liveness = &liveness});
  liveness.report_lost(1, "was killed");
  EXPECT_FALSE(transport.barrier().ok());
  EXPECT_FALSE(transport.has_lent_memory());
}

TEST(AbandonedReceive, OfTheBootstrapWritesOnlyIntoItsOwnMemory) {
  FakeNetwork network;
  FakeApi api(network, 0, 2);
  api.match_all();
  mpi::MpiBootstrap bootstrap(api, 0, std::chrono::milliseconds(1));
  EXPECT_THROW(bootstrap.allgather("me"), Error);
  const Scavenger scavenger;
  EXPECT_EQ(api.deliver_late(), 1U);
  EXPECT_TRUE(scavenger.is_untouched());
}

// Two engines that MPI's transport connects. Data does not arrive, but control messages do.
const std::vector<int> kEach{0, 1};

struct CutRank {
  CutRank(FakeNetwork& data, FakeNetwork& control, int rank, Liveness& liveness, const EngineOptions& more = {})
      : data_api(data, rank, 2), control_api(control, rank, 2) {
    data_api.match_all();
    const messages::WaitOptions options{.liveness = &liveness};
    Link link{std::make_unique<messages::MessageTransport>(mpi::make_network(data_api, {0}), options),
              std::make_unique<messages::MessageChannel>(mpi::make_network(control_api, {0, 1}), options, closing)};
    engine = std::make_unique<ProcessSetEngine>(make_tree(rank, kEach, kEach), std::move(link), more, liveness,
                                                [](const Request&, Completion*) { return Status(); });
  }

  std::shared_ptr<WorkItem> submit(Verb verb, const std::string& name, std::vector<float>& values) const {
    auto work = std::make_shared<WorkItem>();
    work->request = request(verb, name, {{DType::float32, {static_cast<std::int64_t>(values.size())}}});
    work->inputs = {values.data()};
    if (verb == Verb::allreduce) work->outputs = work->inputs;
    engine->submit(work);
    return work;
  }

  FakeApi data_api, control_api;
  messages::ClosingChannels closing;
  std::unique_ptr<ProcessSetEngine> engine;
};

TEST(LentTensors, AreThoseOfTheWorkInProgress) {
  for (const auto verb : {Verb::allreduce, Verb::allgather}) {
    FakeNetwork data, control;
    Liveness liveness;
    CutRank ranks[] = {{data, control, 0, liveness}, {data, control, 1, liveness}};
    data.cut();
    std::vector<float> values[] = {std::vector<float>(100), std::vector<float>(100)};
    std::vector<float> others(100);
    std::shared_ptr<WorkItem> works[2];
    for (std::size_t r = 0; r < 2; ++r) works[r] = ranks[r].submit(verb, "x", values[r]);
    while (data.in_progress() < 2) std::this_thread::yield();
    auto waiting = ranks[0].submit(verb, "not in progress", others);
    liveness.report_lost(7, "was killed");
    for (std::size_t r = 0; r < 2; ++r) {
      ranks[r].engine->wake();
      ranks[r].engine->wait(works[r]->completion);
      EXPECT_EQ(works[r]->completion.status().kind(), ErrorKind::peer_lost);
      EXPECT_TRUE(works[r]->completion.memory_is_lent);
      works[r].reset();  // frees its results, too
    }
    ranks[0].engine->wait(waiting->completion);
    EXPECT_FALSE(waiting->completion.memory_is_lent);
    for (auto& rank : ranks) rank.engine.reset();
    const Scavenger scavenger;
    for (auto& rank : ranks) EXPECT_GT(rank.data_api.deliver_late(), 0U);
    EXPECT_TRUE(scavenger.is_untouched());
  }
}

// Tensors of a device without NCCL are sent and received in pinned host memory.
TEST(LentMemory, ThatIsPinnedIsNotFreed) {
  FakeCuda fake;
  fake.leave(2);
  auto device = cuda::CudaDevice::open(fake.driver(), 0);
  const auto stream = fake.make_stream();
  EngineOptions options;
  options.device = [device] { return device; };
  FakeNetwork data, control;
  Liveness liveness;
  CutRank ranks[] = {{data, control, 0, liveness, options}, {data, control, 1, liveness, options}};
  data.cut();
  std::vector<float> values[] = {std::vector<float>(100, 1.0F), std::vector<float>(100, 1.0F)};
  std::shared_ptr<WorkItem> works[2];
  for (std::size_t r = 0; r < 2; ++r) {
    auto work = works[r] = std::make_shared<WorkItem>();
    work->request = request(Verb::allreduce, "x", {{DType::float32, {100}}});
    work->request.on_host = false;
    work->inputs = work->outputs = {values[r].data()};
    work->completion.on_device = on_device(device, stream, "allreduce 'x'");
    ranks[r].engine->submit(work);
  }
  while (data.in_progress() < 2) std::this_thread::yield();
  liveness.report_lost(7, "was killed");
  for (std::size_t r = 0; r < 2; ++r) {
    ranks[r].engine->wake();
    ranks[r].engine->wait(works[r]->completion);
    EXPECT_EQ(works[r]->completion.status().kind(), ErrorKind::peer_lost);
    works[r].reset();
  }
  for (auto& rank : ranks) rank.engine.reset();
  const Scavenger scavenger;
  for (auto& rank : ranks) EXPECT_GT(rank.data_api.deliver_late(), 0U);
  EXPECT_TRUE(scavenger.is_untouched());
  EXPECT_EQ(values[0], std::vector<float>(100, 1.0F));
}

// Rank 1 is slow: it has described its memory and still reduces when rank 0 learns of the loss of rank 2.
TEST(LentMemory, OfTheArenaIsNotReusedWhileASlowPeerMayWriteToIt) {
  run_world(Ranks::threads, 2, [](World& world) {
    constexpr std::int64_t kCount = 1 << 16;
    constexpr std::size_t kBytes = kCount * sizeof(float);
    auto link = world.connect_all();
    auto* const data = static_cast<float*>(world.fabric.allocate(kBytes));
    auto* const released_before = world.fabric.allocate(kBytes);
    ASSERT_NE(data, nullptr);
    const Piece piece{data, kCount};
    // Rank 1 takes part in one collective fewer, and its flag has the value that a slow rank 1 would have.
    EXPECT_TRUE(link.transport->allreduce({}, {&piece, 1}, {&piece, 1}).ok());
    EXPECT_FALSE(link.transport->has_lent_memory());
    world.exchange("");
    if (world.rank == 0) {
      std::thread killer([&world] { world.liveness.report_lost(7, "was killed"); });
      const auto status = link.transport->allreduce({}, {&piece, 1}, {&piece, 1});
      killer.join();
      EXPECT_EQ(status.kind(), ErrorKind::peer_lost);
      EXPECT_TRUE(link.transport->has_lent_memory());
      world.fabric.release(data);
      for (int i = 0; i < 20; ++i) {
        auto* const next = static_cast<float*>(world.fabric.allocate(kBytes));
        ASSERT_NE(next, nullptr);
        EXPECT_TRUE(next + kCount <= data || data + kCount <= next) << "a slow peer still writes there";
      }
      // Memory that is allocated after the failure can be released as before.
      auto* const first = world.fabric.allocate(kBytes);
      world.fabric.release(first);
      EXPECT_EQ(world.fabric.allocate(kBytes), first);
    }
    world.fabric.release(released_before);
    world.exchange("");
  });
}

}  // namespace
}  // namespace perseus::testing
