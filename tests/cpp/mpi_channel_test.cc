// Tests control messages over MPI, and waits that end with an error.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "mpi_fake.h"
#include "transport/mpi/channel.h"
#include "transport/mpi/communicator.h"

namespace perseus::testing {
namespace {

TEST(MpiChannel, KeepsTheOrderOfASenderAndEmptyMessages) {
  FakeNetwork network;
  FakeApi one(network, 0, 2), other(network, 1, 2);
  mpi::ClosingChannels closing_channels;
  mpi::MpiChannel from(one, 0, {}, closing_channels), to(other, 0, {}, closing_channels);
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

TEST(MpiChannel, SendsToItself) {
  FakeNetwork network;
  FakeApi api(network, 0, 1);
  mpi::ClosingChannels closing_channels;
  mpi::MpiChannel channel(api, 0, {}, closing_channels);
  const auto rings = channel.doorbell().notifications();
  channel.send(0, "me");
  EXPECT_NE(channel.doorbell().notifications(), rings);
  ControlMessage message;
  ASSERT_TRUE(channel.receive(message));
  EXPECT_EQ(message.bytes, "me");
}

// MPI reuses the number of a freed communicator, so a late message for the old one would reach the new one.
TEST(MpiChannel, ItsCommunicatorIsFreedOnlyWhenNoMessageCanArrive) {
  FakeNetwork network;
  FakeApi one(network, 0, 2), other(network, 1, 2);
  mpi::ClosingChannels of_one, of_other;
  auto first = std::make_unique<mpi::MpiChannel>(one, 0, mpi::WaitOptions{}, of_one);
  auto second = std::make_unique<mpi::MpiChannel>(other, 0, mpi::WaitOptions{}, of_other);
  first.reset();
  of_one.sweep();
  EXPECT_EQ(one.freed(), 0);
  second->send(0, "goodbye");
  second.reset();
  EXPECT_EQ(other.freed(), 1);
  of_one.sweep();
  EXPECT_EQ(one.freed(), 1);
  mpi::Arrival arrival;
  EXPECT_FALSE(network.peek(0, static_cast<int>(mpi::Tag::control), arrival));
}

TEST(MpiWait, EndsWithALostPeerAndAbandonsItsRequest) {
  FakeNetwork network;
  FakeApi api(network, 0, 2);
  Liveness liveness;
  mpi::Communicator communicator(api, 0, {.liveness = &liveness});
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
  mpi::Communicator communicator(api, 0, {.limit = std::chrono::milliseconds(20)});
  mpi::Messages messages(communicator);
  char bytes[2];
  messages.receive(&bytes[0], 1, 2, mpi::Tag::gather);
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
