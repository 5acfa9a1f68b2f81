// Tests overlapping allreduces: two are in progress at once, and the results have the bits of successive allreduces.
// After a failure, no memory is used once the call has returned.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "engine_rank.h"
#include "hierarchy_world.h"
#include "transport/hierarchy/pair.h"
#include "transport/hierarchy/transport.h"
#include "transport/self/transport.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using namespace std::chrono_literals;

// Records all calls in one list.
class CallOrder final : public Observer {
 public:
  void turns_to(std::size_t which) override {
    if (which == begun) ++begun;
    EXPECT_LT(which, begun) << "an allreduce started before the previous one";
    EXPECT_GE(which, done_so_far) << "a call for an allreduce that is already done";
    most_in_progress = std::max(most_in_progress, begun - done_so_far);
  }
  void done(std::size_t which) override {
    EXPECT_EQ(which, done_so_far);
    EXPECT_LT(which, begun);
    done_so_far = which + 1;
  }

  std::size_t begun = 0, done_so_far = 0, most_in_progress = 0;
};

// A rail whose behaviour the test defines.
class FakeRail final : public Transport {
 public:
  using Behaviour = std::function<Status()>;
  explicit FakeRail(Behaviour behaviour) : behaviour_(std::move(behaviour)) {}

  std::string_view name() const override { return "fake"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Status allreduce(const Reduction&, Pieces, Pieces) override { return behaviour_(); }
  Status broadcast(Pieces, int) override { return {}; }
  Status allgather(const void*, void*, Counts) override { return {}; }
  Status alltoall(const void*, Counts, void*, Counts) override { return {}; }
  Status reduce_scatter(const Reduction&, const void*, void*, Counts) override { return {}; }
  Status barrier() override { return {}; }

 private:
  Behaviour behaviour_;
};

// The transport of the first of two hosts, over two fake rails.
std::unique_ptr<Transport> alone_on_a_host(bool as_a_pair, FakeRail::Behaviour rail, FakeRail::Behaviour second_rail) {
  auto first = std::make_unique<FakeRail>(std::move(rail)), second = std::make_unique<FakeRail>(std::move(second_rail));
  if (as_a_pair) return std::make_unique<hierarchy::PairTransport>(std::move(first), std::move(second));
  const Topology topology(0, {0, 1});
  const std::array members = {0, 1};
  hierarchy::Transports transports{std::make_unique<self::SelfTransport>(), std::move(first),
                                   std::make_unique<FakeRail>([] { return Status(); }), std::move(second)};
  return std::make_unique<hierarchy::HierarchicalTransport>(hierarchy::Layout(topology, members), 0,
                                                            std::move(transports));
}

// An event that happens once.
class Event {
 public:
  void happen() {
    const std::scoped_lock lock(mutex_);
    happened_ = true;
    changed_.notify_all();
  }
  bool wait(std::chrono::seconds patience = 60s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return happened_; });
  }
  bool happened() { return wait(0s); }

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  bool happened_ = false;
};

// A few numbers that are summed in place.
struct Numbers {
  explicit Numbers(std::int64_t count, DType dtype = DType::float32) : memory(static_cast<std::size_t>(count) * 8) {
    piece = {memory.data(), count};
    reduction.dtype = reduction.wire_dtype = dtype;
  }
  Allreduce all() const { return {reduction, {&piece, 1}, {&piece, 1}}; }

  std::vector<std::byte> memory;
  Piece piece;
  Reduction reduction;
};

// Allreduces of one number each.
struct Several {
  explicit Several(int count) {
    for (int i = 0; i < count; ++i) all.push_back(numbers.emplace_back(std::make_unique<Numbers>(1))->all());
  }
  std::vector<std::unique_ptr<Numbers>> numbers;
  std::vector<Allreduce> all;
};

class OverlappingAllreduces : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OnFakeRails, OverlappingAllreduces, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Pair" : "Cluster"; });

TEST_P(OverlappingAllreduces, TwoSmallAllreducesRunAtTheSameTime) {
  Event first, second;
  const auto transport = alone_on_a_host(
      GetParam(),
      [&] {
        first.happen();
        return second.wait() ? Status() : Status(ErrorKind::transport, "the second was not begun meanwhile");
      },
      [&] {
        second.happen();
        return first.wait() ? Status() : Status(ErrorKind::transport, "the first was over before");
      });
  ASSERT_TRUE(transport->overlaps_allreduces());
  Numbers floats(3), whole(5, DType::int32);
  const std::array all = {floats.all(), whole.all()};
  CallOrder notes;
  const auto status = transport->allreduce_each(all, notes);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(notes.done_so_far, 2U);
  EXPECT_EQ(notes.most_in_progress, 2U);
}

// The results of one may be used while the others are in progress.
TEST_P(OverlappingAllreduces, EachIsDoneBeforeTheLastStarts) {
  class Gate final : public Observer {
   public:
    explicit Gate(Event& open) : open_(open) {}
    void turns_to(std::size_t) override {}
    void done(std::size_t which) override {
      if (which == 0) open_.happen();
    }

   private:
    Event& open_;
  };
  Event first_is_done;
  int begun = 0;  // on the second rail, which has numbers 1 and 3
  const auto transport = alone_on_a_host(
      GetParam(), [] { return Status(); },
      [&] {
        const bool waits = ++begun == 2;
        return !waits || first_is_done.wait() ? Status() : Status(ErrorKind::transport, "all at once");
      });
  const Several several(4);
  Gate gate(first_is_done);
  const auto status = transport->allreduce_each(several.all, gate);
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST_P(OverlappingAllreduces, AFailureWaitsForTheOtherThread) {
  Event failing;
  std::atomic<bool> ended{false};
  const auto transport = alone_on_a_host(
      GetParam(),
      [&] {
        failing.happen();
        return Status(ErrorKind::peer_lost, "rank 1 has died");
      },
      [&] {
        failing.wait();
        for (int i = 0; i < 1000; ++i) std::this_thread::yield();
        ended = true;
        return Status();
      });
  const Several several(3);
  CallOrder notes;
  const auto status = transport->allreduce_each(several.all, notes);
  EXPECT_EQ(status.kind(), ErrorKind::peer_lost);
  EXPECT_TRUE(ended);
  EXPECT_EQ(notes.done_so_far, 0U);
}

TEST_P(OverlappingAllreduces, ALaterFailureKeepsTheFirstResult) {
  int carried = 0;
  const auto transport = alone_on_a_host(
      GetParam(), [&] { return ++carried == 2 ? Status(ErrorKind::transport, "the third") : Status(); },
      [] { return Status(); });
  const Several several(6);
  CallOrder notes;
  const auto status = transport->allreduce_each(several.all, notes);
  EXPECT_EQ(status.text(), "the third");
  EXPECT_LE(notes.done_so_far, 2U);
}

// Random values in several pieces, with sizes of no chunk, one chunk and several chunks.
struct Values {
  Values(int rank, std::size_t number, Reduction how, std::int64_t count) : reduction(how), in(bytes_of(how, count)) {
    std::mt19937 random(static_cast<unsigned>(rank * 100) + static_cast<unsigned>(number));
    for (auto& value : in) value = static_cast<float>(random()) / static_cast<float>(random.max()) - 0.5F;
    out.resize(in.size());
    const auto half = count / 2;
    const auto width = size_of(how.dtype);
    const auto pieces = [&](std::vector<float>& memory) {
      auto* base = reinterpret_cast<std::byte*>(memory.data());
      return std::vector<Piece>{{base, half}, {base + static_cast<std::size_t>(half) * width, count - half}};
    };
    from = pieces(in);
    to = pieces(out);
  }
  static std::size_t bytes_of(const Reduction& how, std::int64_t count) {
    return (static_cast<std::size_t>(count) * size_of(how.dtype) + 3) / 4;
  }
  Allreduce all() const { return {reduction, from, to}; }

  Reduction reduction;
  std::vector<float> in, out;
  std::vector<Piece> from, to;
};

std::vector<std::unique_ptr<Values>> many_kinds(const World& world) {
  const auto kind = [&](DType dtype, ReduceOp op, std::int64_t divisor) {
    return Reduction{dtype, dtype, op, {1.0, 1.0, divisor}};
  };
  const std::array<std::pair<Reduction, std::int64_t>, 11> kinds = {{
      {kind(DType::float32, ReduceOp::sum, 1), 0},
      {kind(DType::float32, ReduceOp::sum, world.size), 7},
      {kind(DType::float32, ReduceOp::max, 1), 1'000'003},
      {kind(DType::int32, ReduceOp::bxor, 1), 129},
      {kind(DType::float32, ReduceOp::sum, 1), 2'500'001},
      {kind(DType::uint8, ReduceOp::max, 1), 0},
      {kind(DType::int64, ReduceOp::min, 1), 33},
      {kind(DType::int16, ReduceOp::sum, 1), 1'500'000},
      {{DType::float32, DType::bfloat16, ReduceOp::sum, {2.0, 0.5, world.size}}, 300'000},
      {kind(DType::float32, ReduceOp::product, 1), 1},
      {kind(DType::int8, ReduceOp::sum, 1), 0},
  }};
  std::vector<std::unique_ptr<Values>> all;
  for (const auto& [how, count] : kinds) {
    all.push_back(std::make_unique<Values>(world.rank, all.size(), how, count));
  }
  return all;
}

std::vector<Allreduce> arguments_of(const std::vector<std::unique_ptr<Values>>& values) {
  std::vector<Allreduce> all;
  for (const auto& each : values) all.push_back(each->all());
  return all;
}

class OverlappingAllreducesOf : public ::testing::TestWithParam<int> {};

TEST_P(OverlappingAllreducesOf, ManyKindsGiveTheSameBitsAsOneByOne) {
  run_world(Ranks::hosts, GetParam(), [](World& world) {
    const auto link = world.connect_all();
    const auto one_by_one = many_kinds(world), together = many_kinds(world);
    for (const auto& each : one_by_one) {
      ASSERT_TRUE(link.transport->allreduce(each->reduction, each->from, each->to).ok());
    }
    CallOrder notes;
    const auto status = link.transport->allreduce_each(arguments_of(together), notes);
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(notes.done_so_far, together.size());
    EXPECT_GE(notes.most_in_progress, 2U);
    for (std::size_t i = 0; i < together.size(); ++i) {
      const auto bits = [](const std::vector<float>& values) {
        std::vector<std::uint32_t> all(values.size());
        std::transform(values.begin(), values.end(), all.begin(),
                       [](float v) { return std::bit_cast<std::uint32_t>(v); });
        return all;
      };
      EXPECT_EQ(bits(together[i]->out), bits(one_by_one[i]->out)) << "number " << i;
    }
    EXPECT_TRUE(link.transport->barrier().ok());
  });
}

// The last rank leaves while the others are in the call.
TEST_P(OverlappingAllreducesOf, ManyKindsEndWhenARankIsLost) {
  class Leaves final : public Observer {
   public:
    explicit Leaves(std::function<void()> leave) : leave_(std::move(leave)) {}
    void turns_to(std::size_t) override {}
    void done(std::size_t which) override {
      if (which == 3) leave_();
    }

   private:
    std::function<void()> leave_;
  };
  run_world(Ranks::hosts, GetParam(), [](World& world) {
    const auto link = world.connect_all();
    const auto values = many_kinds(world);
    const auto all = arguments_of(values);
    const int lost = world.size - 1;
    if (world.rank == lost) {
      Leaves leaves([&] {
        world.liveness.report_lost(lost, "(process 1) has died");
        throw std::runtime_error("left");
      });
      EXPECT_THROW((void)link.transport->allreduce_each(all, leaves), std::runtime_error);
    } else {
      CallOrder notes;
      const auto status = link.transport->allreduce_each(all, notes);
      EXPECT_EQ(status.kind(), ErrorKind::peer_lost) << status.text();
      EXPECT_LT(notes.done_so_far, all.size());
    }
    world.exchange("");
  });
}

// Plans whose batches are large and small and of several kinds, over rails.
TEST_P(OverlappingAllreducesOf, ARailsPlansAreFinishedOneByOne) {
  run_world(Ranks::hosts, GetParam(), [](World& world) {
    std::mt19937 random(static_cast<unsigned>(world.rank));
    EngineRank rank(world, {}, crossed_hosts(world.size));
    for (int round = 0; round < 6; ++round) {
      std::vector<std::unique_ptr<Started>> started;
      for (int i = 0; i < 12; ++i) {
        const std::int64_t count = i % 4 == 1 ? 150'000 + i : i % 5 == 0 ? 0 : i * 10;
        started.push_back(rank.allreduce("x" + std::to_string(i), count, 1 + i % 3, round % 2 == 0));
      }
      started.push_back(rank.broadcast("b", 10, round % world.size));
      std::shuffle(started.begin(), started.end(), random);
      for (auto& one : started) rank.finish(*one, round % 2 == 0);
    }
    // Joined ranks contribute zeros.
    if (world.rank > 0) {
      std::vector<std::unique_ptr<Started>> started;
      for (int i = 0; i < 6; ++i) {
        started.push_back(rank.allreduce("j" + std::to_string(i), i % 2 == 0 ? 200'000 : 5, 1 + i % 3));
      }
      const auto total = world.size * (world.size + 1) / 2 - 1;
      for (int i = 0; i < 6; ++i) {
        auto& one = *started[static_cast<std::size_t>(i)];
        ASSERT_TRUE(rank.outcome(one).ok());
        EXPECT_EQ(one.out[3], 3 * total / (1 + i % 3));
        EXPECT_EQ(one.out.back(), (std::ssize(one.out) - 1) * total / (1 + i % 3));
      }
    }
    const auto joined = rank.engine().join();
    rank.engine().wait(*joined);
    EXPECT_TRUE(joined->status().ok());
    rank.engine().close(20s);
  });
}

INSTANTIATE_TEST_SUITE_P(SeveralHosts, OverlappingAllreducesOf, ::testing::Values(2, 3, 4, 5));

}  // namespace
}  // namespace perseus::testing
