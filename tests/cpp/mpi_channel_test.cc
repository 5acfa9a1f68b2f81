// Tests control messages over MPI, and waits that end with an error.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "mpi_fake.h"
#include "transport/messages/channel.h"
#include "transport/messages/communicator.h"
#include "transport/mpi/bootstrap.h"
#include "transport/mpi/connections.h"

namespace perseus::testing {
namespace {

TEST(MessageChannel, KeepsTheOrderOfASenderAndEmptyMessages) {
  FakeNetwork network;
  FakeApi one(network, 0, 2), other(network, 1, 2);
  messages::ClosingChannels closing_channels;
  messages::MessageChannel from(mpi::make_network(one, {0, 1}), {}, closing_channels);
  messages::MessageChannel to(mpi::make_network(other, {0, 1}), {}, closing_channels);
  const std::string texts[] = {"first", "", std::string(100'000, 'x'), "last"};
  for (const auto& text : texts) from.send(1, text);
  ControlMessage message;
  for (const auto& text : texts) {
    ASSERT_TRUE(to.receive(message));
    EXPECT_EQ(message.from, 0);
    EXPECT_EQ(message.bytes, text);
  }
  EXPECT_FALSE(to.receive(message));
  EXPECT_TRUE(to.needs_polling());
}

TEST(MessageChannel, SendsToItself) {
  FakeNetwork network;
  FakeApi api(network, 0, 1);
  messages::ClosingChannels closing_channels;
  messages::MessageChannel channel(mpi::make_network(api, {0, 1}), {}, closing_channels);
  const auto rings = channel.doorbell().notifications();
  channel.send(0, "me");
  EXPECT_NE(channel.doorbell().notifications(), rings);
  ControlMessage message;
  ASSERT_TRUE(channel.receive(message));
  EXPECT_EQ(message.bytes, "me");
}

// MPI reuses the number of a freed communicator, so a late message for the old one would reach the new one.
TEST(MessageChannel, ItsCommunicatorsAreFreedOnlyWhenNoMessageCanArrive) {
  FakeNetwork network;
  FakeApi one(network, 0, 2), other(network, 1, 2);
  messages::ClosingChannels of_one, of_other;
  auto first =
      std::make_unique<messages::MessageChannel>(mpi::make_network(one, {0, 1}), messages::WaitOptions{}, of_one);
  auto second =
      std::make_unique<messages::MessageChannel>(mpi::make_network(other, {0, 1}), messages::WaitOptions{}, of_other);
  first.reset();
  of_one.sweep();
  EXPECT_EQ(one.freed(), 0);
  second->send(0, "goodbye");
  second.reset();
  for (int sweeps = 0; sweeps < 3; ++sweeps) {
    if (one.freed() == 0) of_one.sweep();
    if (other.freed() == 0) of_other.sweep();
  }
  EXPECT_EQ(one.freed(), 2);
  EXPECT_EQ(other.freed(), 2);
  EXPECT_EQ(network.in_progress(), 0U);
}

// A connection to each of a thousand ranks at the end of a job costs more than the job's own.
TEST(MessageChannel, ClosesByMessagesToFewRanks) {
  constexpr int kRanks = 64, kNeighbour = 33;
  FakeNetwork network;
  std::vector<std::unique_ptr<FakeApi>> apis;
  std::vector<std::unique_ptr<messages::MessageChannel>> channels;
  messages::ClosingChannels closing_channels;
  for (int rank = 0; rank < kRanks; ++rank) {
    apis.push_back(std::make_unique<FakeApi>(network, rank, kRanks));
    channels.push_back(std::make_unique<messages::MessageChannel>(mpi::make_network(*apis.back(), {0, 1}),
                                                                  messages::WaitOptions{}, closing_channels));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    channels[static_cast<std::size_t>(rank)]->send((rank + kNeighbour) % kRanks, "last");
  }
  channels.clear();
  for (int round = 0; round < kRanks; ++round) closing_channels.sweep();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(apis[static_cast<std::size_t>(rank)]->freed(), 2);
    EXPECT_LE(network.peers_of(rank).size(), 2U * 6U + 2U);
  }
  EXPECT_EQ(network.in_progress(), 0U);
}

TEST(MpiBootstrap, GathersBytesOfAnyLengthByMessagesToFewRanks) {
  for (const int ranks : {1, 2, 3, 5, 8, 64}) {
    FakeNetwork network;
    std::vector<std::string> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.emplace_back(static_cast<std::size_t>(rank % 5 * 100), 'a' + rank % 26);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeApi api(network, rank, ranks);
        mpi::MpiBootstrap bootstrap(api, 0, std::chrono::minutes(1));
        EXPECT_EQ(bootstrap.allgather(all[static_cast<std::size_t>(rank)]), all);
      });
    }
    for (auto& thread : threads) thread.join();
    const auto rounds = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(network.peers_of(rank).size(), 2 * rounds);
  }
}

TEST(MpiWait, EndsWithALostPeerAndAbandonsItsRequest) {
  FakeNetwork network;
  FakeApi api(network, 0, 2);
  Liveness liveness;
  messages::Communicator communicator(mpi::make_network(api, {0}), {.liveness = &liveness});
  liveness.report_lost(1, "was killed");
  try {
    communicator.barrier();
    FAIL() << "the barrier completed without the other rank";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::peer_lost);
    EXPECT_STREQ(error.what(), "rank 1 was killed");
  }
  EXPECT_EQ(api.open_requests(), 0U);
}

TEST(MpiWait, EndsAtItsLimitAndNamesTheMissingRanks) {
  FakeNetwork network;
  FakeApi api(network, 0, 3);
  messages::Communicator communicator(mpi::make_network(api, {0}), {.limit = std::chrono::milliseconds(20)});
  messages::Messages messages(communicator);
  char bytes[2];
  messages.receive(&bytes[0], 1, 2, messages::Tag::gather);
  try {
    messages.wait();
    FAIL() << "the wait ended without a message";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::timed_out);
    EXPECT_NE(std::string(error.what()).find("from rank 2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace perseus::testing
