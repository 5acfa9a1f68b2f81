// Tests that an exception in the engine's cycle fails pending work with its text, and neither ends the process nor
// keeps a lock.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/process_set_engine.h"
#include "engine_cases.h"
#include "engine_rank.h"
#include "mpi_fake.h"
#include "transport/messages/channel.h"
#include "transport/messages/transport.h"
#include "transport/mpi/connections.h"
#include "transport/mpi/send_guard.h"

namespace perseus {
namespace {

using testing::EngineRank;
using testing::kGrace;
using testing::Ranks;
using testing::run_world;
using testing::World;

using Failure = std::function<void()>;

// A control channel whose send() or receive() throws on request.
class FailingChannel final : public ControlChannel {
 public:
  FailingChannel(std::unique_ptr<ControlChannel> below, const std::atomic<bool>& fails, const Failure& failure,
                 bool at_send)
      : below_(std::move(below)), fails_(fails), failure_(failure), at_send_(at_send) {}

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  void send(int to, std::string bytes) override {
    if (fails_ && at_send_) failure_();
    below_->send(to, std::move(bytes));
  }
  bool keeps_for(int to) const override { return below_->keeps_for(to); }
  bool keeps_any() const override { return below_->keeps_any(); }
  bool receive(ControlMessage& message) override {
    if (fails_ && !at_send_) failure_();
    return below_->receive(message);
  }
  Doorbell& doorbell() override { return below_->doorbell(); }
  bool needs_polling() const override { return below_->needs_polling(); }

 private:
  std::unique_ptr<ControlChannel> below_;
  const std::atomic<bool>& fails_;
  Failure failure_;
  bool at_send_;
};

class FailingFabric final : public Fabric {
 public:
  FailingFabric(Fabric& below, Failure failure, bool at_send)
      : below_(below), failure_(std::move(failure)), at_send_(at_send) {}

  std::atomic<bool> fails{false};

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    auto link = below_.connect(members, exchange);
    link.control = std::make_unique<FailingChannel>(std::move(link.control), fails, failure_, at_send_);
    return link;
  }
  void* allocate(std::size_t bytes) override { return below_.allocate(bytes); }
  void release(void* memory) override { below_.release(memory); }
  std::string description() const override { return below_.description(); }

 private:
  Fabric& below_;
  Failure failure_;
  bool at_send_;
};

struct Thrown {
  const char* name;
  Failure failure;
  ErrorKind kind;
  const char* text;
};

const Thrown kThrown[] = {
    {"OfTheTransport", [] { throw Error(ErrorKind::transport, "MPI_Isend failed: no route"); }, ErrorKind::transport,
     "allreduce 'x': MPI_Isend failed: no route"},
    {"OfTheLibrary", [] { throw std::length_error("too long"); }, ErrorKind::transport,
     "allreduce 'x': the engine failed: too long"},
    {"OutOfMemory", [] { throw std::bad_alloc(); }, ErrorKind::unavailable,
     "allreduce 'x': the engine has not enough memory"},
};

using ExceptionCase = std::tuple<Thrown, bool, bool>;

std::string name_of_case(const ::testing::TestParamInfo<ExceptionCase>& info) {
  const auto& [thrown, at_send, by_engine] = info.param;
  return std::string(thrown.name) + (at_send ? "AtSend" : "AtReceive") + (by_engine ? "OnItsThread" : "OnTheCallers");
}

class Exceptions : public ::testing::TestWithParam<ExceptionCase> {};
INSTANTIATE_TEST_SUITE_P(Engine, Exceptions,
                         ::testing::Combine(::testing::ValuesIn(kThrown), ::testing::Bool(), ::testing::Bool()),
                         name_of_case);

// Returns the text of the failure of an allreduce 'x', which may be rejected at once.
Status outcome(EngineRank& rank, bool by_engine) {
  try {
    const auto started = rank.allreduce("x", 3);
    return by_engine ? rank.outcome_by_engine(*started) : rank.outcome(*started);
  } catch (const Error& error) {
    return Status::from(error);
  }
}

TEST_P(Exceptions, FailPendingWorkAndCloseTheEngine) {
  const auto& [thrown, at_send, by_engine] = GetParam();
  run_world(Ranks::threads, 3, [&](World& world) {
    FailingFabric fabric(world.fabric, thrown.failure, at_send);
    World here{world.rank, world.size, fabric, world.exchange, world.liveness};
    EngineRank rank(here);
    world.liveness.on_lost([&rank] { rank.engine().wake(); });
    rank.finish(*rank.allreduce("before", 3));
    world.exchange("");
    if (world.rank == 1) {
      fabric.fails = true;
      const auto status = outcome(rank, by_engine);
      EXPECT_EQ(status.kind(), thrown.kind);
      EXPECT_EQ(status.text(), thrown.text);
      EXPECT_TRUE(rank.engine().failed_itself());
      EXPECT_THROW(rank.allreduce("later", 3), Error);
    } else {
      const auto status = outcome(rank, by_engine);
      EXPECT_EQ(status.kind(), ErrorKind::peer_lost) << status.text();
      EXPECT_NE(status.text().find("rank 1 failed"), std::string::npos) << status.text();
    }
    world.exchange("");
    world.liveness.remove_wakes();
    world.exchange("");
    rank.engine().close(kGrace);
  });
}

// Rank 0 is lost while small requests are in flight; sends to it throw from then on, in the middle of a cycle.
TEST(LostRoot, EndsNoOtherProcessDuringSmallRequests) {
  // The thread of a guard may outlive the test, so the guards live until the process ends.
  static auto* const guards = new std::vector<std::unique_ptr<mpi::SendGuard>>;
  for (int round = 0; round < 20; ++round) {
    testing::FakeNetwork data, control;
    Liveness liveness;
    auto* const sends = guards->emplace_back(std::make_unique<mpi::SendGuard>()).get();
    const messages::WaitOptions options{.liveness = &liveness};
    testing::FakeApi data_api(data, 1, 2), control_api(control, 1, 2);
    messages::ClosingChannels closing_channels;
    Link link{std::make_unique<messages::MessageTransport>(mpi::make_network(data_api, {0}, sends), options),
              std::make_unique<messages::MessageChannel>(mpi::make_network(control_api, {0, 1}, sends), options,
                                                         closing_channels)};
    const std::vector<int> each{0, 1};
    ProcessSetEngine engine(make_tree(1, each, each), std::move(link), {}, liveness,
                            [](const Request&, Completion*) { return Status(); });
    std::vector<std::shared_ptr<WorkItem>> works;
    std::vector<float> values(4);
    std::thread killer([&] {
      std::this_thread::yield();
      sends->lose("rank 0 was killed");
      liveness.report_lost(0, "was killed");
    });
    try {
      for (int i = 0; i < 500; ++i) {
        auto work = std::make_shared<WorkItem>();
        work->request = testing::allreduce("x" + std::to_string(i), {4});
        work->inputs = work->outputs = {values.data()};
        works.push_back(work);
        engine.submit(work);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::peer_lost);
    }
    killer.join();
    engine.wake();
    works.pop_back();  // the request may have been rejected
    for (const auto& work : works) {
      engine.wait(work->completion);
      EXPECT_EQ(work->completion.status().kind(), ErrorKind::peer_lost);
      EXPECT_NE(work->completion.status().text().find("rank 0 was killed"), std::string::npos);
    }
    engine.close(kGrace);
  }
}

}  // namespace
}  // namespace perseus
