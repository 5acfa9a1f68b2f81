// Tests the contract of transport.h over every transport.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "transport_buffers.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

constexpr std::array kDTypes = {DType::uint8,   DType::int8,    DType::int16,    DType::int32,
                                DType::int64,   DType::float16, DType::bfloat16, DType::float32,
                                DType::float64, DType::boolean, DType::uint16};
constexpr std::array kPlaces = {Place::heap, Place::arena, Place::mixed};
// Small sizes, and sizes around the limit of one step, of a chunk (16 KiB), and of several chunks.
constexpr std::array<std::int64_t, 9> kCounts = {0, 1, 3, 17, 1023, 16384, 16385, 70'001, 200'000};

struct Case {
  Reduction reduction;
  std::int64_t count = 0;
  int pieces = 1;
  Place in = Place::heap, out = Place::heap;
  bool in_place = false;
};

std::string describe(const Case& c) {
  return std::string(name_of(c.reduction.op)) + " of " + std::to_string(c.count) + " " +
         std::string(name_of(c.reduction.dtype)) + " as " + std::string(name_of(c.reduction.wire_dtype)) + " in " +
         std::to_string(c.pieces) + " pieces, places " + std::to_string(static_cast<int>(c.in)) +
         std::to_string(static_cast<int>(c.out)) + (c.in_place ? " in place" : "");
}

void check_allreduce(World& world, Transport& transport, const Case& c) {
  const auto counts = cut(c.count, c.pieces);
  Buffer in(world.fabric, c.in, c.reduction.dtype, counts);
  std::optional<Buffer> other;
  if (!c.in_place) other.emplace(world.fabric, c.out, c.reduction.dtype, counts);
  Buffer& out = c.in_place ? in : *other;
  const auto mine = contribution(c.reduction, world.rank);
  in.fill(mine);

  const auto status = transport.allreduce(c.reduction, in.pieces(), out.pieces());
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(out.first_other(reduced(c.reduction, world.size)), kNone) << describe(c);
  if (!c.in_place) {
    ASSERT_EQ(in.first_other(mine), kNone) << describe(c) << ": the input was changed";
  }
  EXPECT_TRUE(in.margins_intact() && out.margins_intact()) << describe(c);
}

class Contract : public ::testing::TestWithParam<std::tuple<Ranks, int>> {
 protected:
  void on_every_rank(const std::function<void(World&, Transport&)>& body) {
    const auto [kind, size] = GetParam();
    run_world(kind, size, [&](World& world) {
      const auto link = world.connect_all();
      EXPECT_EQ(link.transport->rank(), world.rank);
      EXPECT_EQ(link.transport->size(), world.size);
      body(world, *link.transport);
      const auto status = link.transport->barrier();
      EXPECT_TRUE(status.ok()) << status.text();
    });
  }
};

TEST_P(Contract, AllreduceOfEveryDTypeAndOp) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto dtype : kDTypes) {
      for (const auto op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product, ReduceOp::band,
                            ReduceOp::bor, ReduceOp::bxor}) {
        const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
        if (bitwise && is_floating(dtype)) continue;
        for (const auto count : {std::int64_t{33}, std::int64_t{70'001}}) {
          for (const auto place : {Place::heap, Place::arena}) {
            check_allreduce(world, transport, {{dtype, dtype, op, {}}, count, 1, place, place, false});
          }
        }
      }
    }
  });
}

TEST_P(Contract, AllreduceOfEverySizeAndPlace) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto count : kCounts) {
      for (const int pieces : {1, 2, 7}) {
        for (const auto in : kPlaces) {
          check_allreduce(world, transport, {{}, count, pieces, in, in, true});
          for (const auto out : kPlaces) check_allreduce(world, transport, {{}, count, pieces, in, out, false});
        }
      }
    }
  });
}

TEST_P(Contract, AllreduceOfMoreRunsThanADescriptorHolds) {
  on_every_rank([](World& world, Transport& transport) {
    for (const int pieces : {900, 3000}) {
      check_allreduce(world, transport, {{}, 100'000, pieces, Place::arena, Place::arena, true});
    }
  });
}

TEST_P(Contract, AllreduceIfOnlySomeRanksReduceInPlace) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto count : kCounts) {
      const auto place = world.rank == 0 ? Place::heap : Place::arena;
      check_allreduce(world, transport, {{}, count, 1 + world.rank, place, place, true});
      // All pieces are reachable, but have different bounds on each rank.
      check_allreduce(world, transport, {{}, count, 3 + 2 * world.rank, Place::arena, Place::arena, false});
    }
  });
}

TEST_P(Contract, AverageAndFactors) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto dtype : kDTypes) {
      if (dtype == DType::boolean) continue;
      for (const auto place : kPlaces) {
        for (const auto count : {std::int64_t{5}, std::int64_t{70'001}}) {
          Reduction average{dtype, dtype, ReduceOp::sum, {1.0, 1.0, world.size}};
          check_allreduce(world, transport, {average, count, 2, place, place, false});
          Reduction twice_and_half{dtype, dtype, ReduceOp::sum, {2.0, 0.5, world.size}};
          check_allreduce(world, transport, {twice_and_half, count, 2, place, place, true});
        }
      }
    }
  });
}

TEST_P(Contract, CompressionByTheWireDtype) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto dtype : {DType::float32, DType::float64}) {
      for (const auto wire : {DType::float16, DType::bfloat16}) {
        for (const auto place : kPlaces) {
          for (const auto count : kCounts) {
            check_allreduce(world, transport,
                            {{dtype, wire, ReduceOp::sum, {2.0, 0.5, world.size}}, count, 3, place, place, true});
          }
        }
      }
    }
  });
}

// Checks that done() is called in order, and only when the results are complete.
class Follower final : public Observer {
 public:
  explicit Follower(std::function<void(std::size_t)> check) : check_(std::move(check)) {}

  void turns_to(std::size_t which) override {
    EXPECT_GE(which, done_);
    EXPECT_LE(which, begun_);
    begun_ = std::max(begun_, which + 1);
  }
  void done(std::size_t which) override {
    EXPECT_EQ(which, done_);
    EXPECT_LT(which, begun_);
    done_ = which + 1;
    check_(which);
  }
  std::size_t count() const { return done_; }

 private:
  std::function<void(std::size_t)> check_;
  std::size_t begun_ = 0, done_ = 0;
};

TEST_P(Contract, SeveralAllreducesOfEveryDTypeOpAndSize) {
  on_every_rank([](World& world, Transport& transport) {
    struct One {
      Reduction reduction;
      std::unique_ptr<Buffer> in, out;
    };
    for (const std::int64_t large : {std::int64_t{1}, std::int64_t{700'000}}) {
      std::vector<One> ones;
      for (const auto dtype : kDTypes) {
        for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
          const auto number = ones.size();
          const auto count = number % 6 == 4 ? large : kCounts[number % kCounts.size()];
          const auto counts = cut(count, 1 + static_cast<int>(number % 3));
          const auto place = kPlaces[(number + static_cast<std::size_t>(world.rank)) % kPlaces.size()];
          auto& one = ones.emplace_back(One{{dtype, dtype, op, {}}, nullptr, nullptr});
          one.in = std::make_unique<Buffer>(world.fabric, place, dtype, counts);
          if (number % 2 == 0) one.out = std::make_unique<Buffer>(world.fabric, place, dtype, counts);
          one.in->fill(contribution(one.reduction, world.rank));
        }
      }
      const auto out_of = [](const One& one) -> Buffer& { return one.out ? *one.out : *one.in; };
      std::vector<Allreduce> all;
      for (const auto& one : ones) all.push_back({one.reduction, one.in->pieces(), out_of(one).pieces()});
      Follower follower([&](std::size_t which) {
        const auto& one = ones[which];
        ASSERT_EQ(out_of(one).first_other(reduced(one.reduction, world.size)), kNone) << "number " << which;
        EXPECT_TRUE(out_of(one).margins_intact() && one.in->margins_intact());
      });
      const auto status = transport.allreduce_each(all, follower);
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_EQ(follower.count(), ones.size());
    }
  });
}

TEST_P(Contract, BroadcastFromEveryRoot) {
  on_every_rank([](World& world, Transport& transport) {
    for (int root = 0; root < world.size; ++root) {
      for (const auto count : kCounts) {
        for (const auto place : kPlaces) {
          Buffer buffer(world.fabric, place, DType::uint8, cut(count, 3 + world.rank));
          const auto roots = sequence(root, 5);
          buffer.fill(world.rank == root ? roots : Numbers{0});
          const auto status = transport.broadcast(buffer.pieces(), root);
          ASSERT_TRUE(status.ok()) << status.text();
          ASSERT_EQ(buffer.first_other(roots), kNone);
          EXPECT_TRUE(buffer.margins_intact());
        }
      }
    }
  });
}

// Sizes that differ between ranks, with no data from one of them.
std::vector<std::int64_t> uneven(int size, std::int64_t count, int shift = 0) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back((r + shift) % size == 1 ? 0 : count + 3 * ((r + shift) % size));
  return counts;
}

TEST_P(Contract, AllgatherOfUnevenParts) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto count : kCounts) {
      for (const auto place : {Place::heap, Place::arena}) {
        for (const bool in_place : {false, true}) {
          const auto counts = uneven(world.size, count);
          const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
          const auto begin = std::accumulate(counts.begin(), counts.begin() + world.rank, std::int64_t{0});
          const auto mine = counts[static_cast<std::size_t>(world.rank)];
          Buffer in(world.fabric, world.rank == 0 ? Place::arena : place, DType::uint8, {mine});
          Buffer out(world.fabric, place, DType::uint8, {total});
          in.fill(sequence(world.rank * 50));
          if (in_place) out.fill(sequence(world.rank * 50), begin, mine);
          const void* from = in_place ? static_cast<std::uint8_t*>(out.data()) + begin : in.data();
          const auto status = transport.allgather(from, out.data(), counts);
          ASSERT_TRUE(status.ok()) << status.text();
          std::int64_t at = 0;
          for (int r = 0; r < world.size; ++r) {
            const auto part = counts[static_cast<std::size_t>(r)];
            ASSERT_EQ(out.first_other(sequence(r * 50), at, part), kNone) << "part of rank " << r;
            at += part;
          }
          EXPECT_TRUE(out.margins_intact());
        }
      }
    }
  });
}

// Among more than four ranks, few bytes are gathered in rounds, in pairs if the number of ranks is a power of two.
TEST(FewBytes, AreGatheredInPairs) {
  run_world(Ranks::messages, 8, [](World& world) {
    const auto link = world.connect_all();
    constexpr std::array kParts = std::to_array<std::int64_t>({3, 0, 1, 4, 1, 5, 9, 2});
    const auto mine = kParts[static_cast<std::size_t>(world.rank)];
    Buffer in(world.fabric, Place::heap, DType::uint8, {mine}), out(world.fabric, Place::heap, DType::uint8, {25});
    in.fill(sequence(world.rank * 10));
    const auto status = link.transport->allgather(in.data(), out.data(), kParts);
    ASSERT_TRUE(status.ok()) << status.text();
    std::int64_t at = 0;
    for (int r = 0; r < world.size; ++r) {
      const auto part = kParts[static_cast<std::size_t>(r)];
      ASSERT_EQ(out.first_other(sequence(r * 10), at, part), kNone) << "part of rank " << r;
      at += part;
    }
    const auto left = link.transport->barrier();
    EXPECT_TRUE(left.ok()) << left.text();
  });
}

TEST_P(Contract, AlltoallOfUnevenParts) {
  on_every_rank([](World& world, Transport& transport) {
    // The bytes from s to r differ for each pair.
    const auto bytes = [&](int s, int r, std::int64_t count) { return (s + 2 * r) % 3 == 1 ? 0 : count + 5 * s + r; };
    const auto values = [](int s, int r) { return sequence(s * 70 + r * 20); };
    for (const auto count : kCounts) {
      for (const auto place : {Place::heap, Place::arena}) {
        for (const bool in_place : {false, true}) {
          std::vector<std::int64_t> send, receive;
          for (int r = 0; r < world.size; ++r) {
            send.push_back(bytes(world.rank, r, count));
            receive.push_back(bytes(r, world.rank, count));
          }
          const auto sent = std::accumulate(send.begin(), send.end(), std::int64_t{0});
          const auto received = std::accumulate(receive.begin(), receive.end(), std::int64_t{0});
          const auto room = in_place ? std::max(sent, received) : sent;
          Buffer in(world.fabric, world.rank == 1 ? Place::heap : place, DType::uint8, {room});
          Buffer other(world.fabric, place, DType::uint8, {received});
          auto& out = in_place ? in : other;
          std::int64_t at = 0;
          for (int r = 0; r < world.size; ++r) {
            in.fill(values(world.rank, r), at, send[static_cast<std::size_t>(r)]);
            at += send[static_cast<std::size_t>(r)];
          }
          const auto status = transport.alltoall(in.data(), send, out.data(), receive);
          ASSERT_TRUE(status.ok()) << status.text();
          at = 0;
          for (int s = 0; s < world.size; ++s) {
            const auto part = receive[static_cast<std::size_t>(s)];
            ASSERT_EQ(out.first_other(values(s, world.rank), at, part), kNone) << "part of rank " << s;
            at += part;
          }
          EXPECT_TRUE(in.margins_intact() && out.margins_intact());
        }
      }
    }
  });
}

TEST_P(Contract, ReduceScatterOfUnevenParts) {
  on_every_rank([](World& world, Transport& transport) {
    for (const auto& reduction : {Reduction{}, Reduction{DType::float64, DType::float64, ReduceOp::max, {}},
                                  Reduction{DType::int32, DType::int32, ReduceOp::sum, {2.0, 0.5, world.size}},
                                  Reduction{DType::float32, DType::float16, ReduceOp::sum, {1.0, 1.0, world.size}}}) {
      for (const auto count : kCounts) {
        for (const auto place : {Place::heap, Place::arena}) {
          for (const bool in_place : {false, true}) {
            const auto counts = uneven(world.size, count, 1);
            const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
            const auto begin = std::accumulate(counts.begin(), counts.begin() + world.rank, std::int64_t{0});
            Buffer in(world.fabric, place, reduction.dtype, {total});
            Buffer other(world.fabric, Place::heap, reduction.dtype, {counts[static_cast<std::size_t>(world.rank)]});
            auto& out = in_place ? in : other;
            in.fill(contribution(reduction, world.rank));
            const auto status = transport.reduce_scatter(reduction, in.data(), out.data(), counts);
            ASSERT_TRUE(status.ok()) << status.text();
            const auto mine = counts[static_cast<std::size_t>(world.rank)];
            ASSERT_EQ(out.first_other(reduced(reduction, world.size, begin), 0, mine), kNone) << "of " << count;
            EXPECT_TRUE(in.margins_intact() && out.margins_intact());
          }
        }
      }
    }
  });
}

TEST_P(Contract, VerbsFollowEachOtherWithoutABarrier) {
  on_every_rank([](World& world, Transport& transport) {
    for (int round = 0; round < 300; ++round) {
      const auto count = std::int64_t{1} << (round % 17);
      const auto place = kPlaces[static_cast<std::size_t>(round + world.rank) % kPlaces.size()];
      check_allreduce(world, transport, {{}, count, 1 + round % 4, place, place, round % 2 == 0});
      Buffer buffer(world.fabric, place, DType::uint8, {count});
      buffer.fill(world.rank == round % world.size ? sequence(round) : Numbers{0});
      const auto status = transport.broadcast(buffer.pieces(), round % world.size);
      ASSERT_TRUE(status.ok()) << status.text();
      ASSERT_EQ(buffer.first_other(sequence(round)), kNone);
    }
  });
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<Ranks, int>>& info) {
  const auto [kind, size] = info.param;
  constexpr std::array kNames = {"Threads", "Processes", "Messages", "Hosts", "Blocking", "Queued", "Background"};
  return kNames[static_cast<std::size_t>(kind)] + std::to_string(size);
}

INSTANTIATE_TEST_SUITE_P(OneHost, Contract,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Mpi, Contract,
                         ::testing::Combine(::testing::Values(Ranks::messages), ::testing::Values(1, 2, 3, 4, 6)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Library, Contract,
                         ::testing::Combine(::testing::Values(Ranks::blocking, Ranks::queued, Ranks::background),
                                            ::testing::Values(2, 3)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(SeveralHosts, Contract,
                         ::testing::Combine(::testing::Values(Ranks::hosts), ::testing::Values(2, 3, 4, 5)),
                         name_of_case);

}  // namespace
}  // namespace perseus::testing
