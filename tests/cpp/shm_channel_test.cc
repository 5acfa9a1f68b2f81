// Tests control messages through shared memory: order, lengths, and wake-ups.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "transport/shm/ring_buffer.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using std::chrono::microseconds;

// Returns the next message; sleeps meanwhile as the engine does.
ControlMessage next_message(ControlChannel& channel) {
  ControlMessage message;
  for (;;) {
    const auto seen = channel.doorbell().notifications();
    if (channel.receive(message)) return message;
    channel.doorbell().wait(seen, Sleeper::engine, microseconds(10'000'000));
  }
}

// The receiver of a message may end without having received it.
TEST(Channel, MemoryOfMessagesThatNobodyReceivesIsFreedWithTheGroup) {
  const auto options = small_options();
  run_world(
      Ranks::threads, 2,
      [&](World& world) {
        const auto bytes = options.arena_bytes / 4;
        const std::string data(bytes, 'x');
        for (int round = 0; round < 8; ++round) {
          const auto link = world.connect_all();
          EXPECT_TRUE(link.control->lay_out(1 - world.rank, data.data(), bytes)) << "round " << round;
          ASSERT_TRUE(link.transport->barrier().ok());
        }
      },
      options);
}

std::string text_of(int from, int to, int number, std::size_t length) {
  return std::to_string(from) + '>' + std::to_string(to) + '#' + std::to_string(number) + std::string(length, '.');
}

class ChannelTest : public ::testing::TestWithParam<std::tuple<Ranks, int>> {
 protected:
  void on_every_rank(const std::function<void(World&, ControlChannel&)>& body) {
    const auto [kind, size] = GetParam();
    run_world(kind, size, [&](World& world) {
      const auto link = world.connect_all();
      body(world, *link.control);
      ASSERT_TRUE(link.transport->barrier().ok());
    });
  }
};

TEST_P(ChannelTest, MessagesOfAllLengthsKeepTheirOrder) {
  on_every_rank([](World& world, ControlChannel& channel) {
    constexpr int kMessages = 400;
    const auto length = [](int number) { return number % 50 == 7 ? std::size_t{40'000} : std::size_t(number) % 97; };
    for (int number = 0; number < kMessages; ++number) {
      for (int to = 0; to < world.size; ++to) channel.send(to, text_of(world.rank, to, number, length(number)));
    }
    std::vector<int> next(static_cast<std::size_t>(world.size));
    int early = 0;  // number of ranks that have all messages and report so while this one still reads
    for (int i = 0; i < kMessages * world.size;) {
      const auto message = next_message(channel);
      auto& number = next[static_cast<std::size_t>(message.from)];
      if (number == kMessages) {
        EXPECT_EQ(message.bytes, "done");
        ++early;
        continue;
      }
      ASSERT_EQ(message.bytes, text_of(message.from, world.rank, number, length(number)));
      ++number;
      ++i;
    }
    // Later calls send the bytes that did not fit, so no rank stops before all have all messages.
    for (int to = 0; to < world.size; ++to) channel.send(to, "done");
    for (int i = early; i < world.size; ++i) EXPECT_EQ(next_message(channel).bytes, "done");
    ControlMessage more;
    EXPECT_FALSE(channel.receive(more));
  });
}

TEST_P(ChannelTest, AnEmptyMessageIsAMessage) {
  on_every_rank([](World& world, ControlChannel& channel) {
    channel.send((world.rank + 1) % world.size, "");
    const auto message = next_message(channel);
    EXPECT_EQ(message.from, (world.rank + world.size - 1) % world.size);
    EXPECT_EQ(message.bytes, "");
  });
}

TEST_P(ChannelTest, PingPong) {
  on_every_rank([](World& world, ControlChannel& channel) {
    const int next = (world.rank + 1) % world.size;
    if (world.rank == 0) channel.send(next, "0");
    for (int round = 0; round < 200; ++round) {
      const auto message = next_message(channel);
      if (world.rank != 0 || round < 199) channel.send(next, std::to_string(std::stoi(message.bytes) + 1));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OneHost, ChannelTest,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Ranks::threads ? "Threads" : "Processes") +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(RingBuffer, DetectsAMalformedState) {
  constexpr std::uint32_t kBytes = 512;
  alignas(64) static std::byte memory[sizeof(shm::RingBufferState) + kBytes];
  auto* state = new (memory) shm::RingBufferState;
  shm::RingBuffer ring(state, kBytes);
  EXPECT_EQ(ring.write("hello", 5), 5U);
  EXPECT_FALSE(ring.corrupted());
  state->written = 10'000;
  EXPECT_TRUE(ring.corrupted());
  EXPECT_EQ(ring.write("hello", 5), 0U);
}

TEST(RingBuffer, WrapsAround) {
  constexpr std::uint32_t kBytes = 512;
  alignas(64) static std::byte memory[sizeof(shm::RingBufferState) + kBytes];
  auto* state = new (memory) shm::RingBufferState;
  state->written = state->read = 0xffffff00U;  // the counters wrap around as well
  shm::RingBuffer ring(state, kBytes);
  std::mt19937 random(3);
  std::string sent, received;
  while (received.size() < 20'000) {
    std::string bytes(random() % 700, static_cast<char>('a' + random() % 26));
    sent += bytes.substr(0, ring.write(bytes.data(), bytes.size()));
    std::string room(random() % 700, '\0');
    received += room.substr(0, ring.read(room.data(), room.size()));
  }
  EXPECT_EQ(received, sent.substr(0, received.size()));
}

}  // namespace
}  // namespace perseus::testing
