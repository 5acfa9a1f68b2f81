// Tests listeners with unauthenticated connections: wrong secrets, silence, many connections, and no descriptors left.
#include "bootstrap/authenticated_listener.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "bootstrap/local/local_rendezvous.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kSecret = "the secret of this test";
constexpr std::string_view kGreeting = "hi";

Deadline in(milliseconds time) { return std::chrono::steady_clock::now() + time; }

class AListener : public ::testing::Test {
 protected:
  AuthenticatedListener listen(milliseconds patience = seconds(30)) const {
    std::vector<UniqueFd> listeners;
    listeners.push_back(listen_on(name_));
    return {std::move(listeners), kSecret, 1, kGreeting.size(), patience};
  }

  UniqueFd connect() const {
    for (;;) {
      if (auto socket = connect_to(name_)) return socket;
      std::this_thread::yield();  // the listener's queue is full
    }
  }

  // Connects as a member of the job does.
  bool join(std::string_view secret = kSecret) const {
    const auto socket = connect();
    return authenticate(socket.get(), secret, in(seconds(30))) == IoResult::ok &&
           send_all(socket.get(), kGreeting.data(), kGreeting.size(), in(seconds(30))) == IoResult::ok;
  }

  const std::string name_ = random_rendezvous_address();
};

bool is_closed(int socket) {
  std::string rest(64, '\0');
  return receive_all(socket, rest.data(), rest.size(), in(seconds(30))) == IoResult::closed;
}

TEST_F(AListener, AdmitsConnectionsThatKnowTheSecret) {
  auto listener = listen();
  std::thread member([&] { EXPECT_TRUE(join()); });
  const auto admitted = listener.next(in(seconds(30)));
  member.join();
  ASSERT_TRUE(admitted);
  EXPECT_EQ(admitted->greeting, kGreeting);
}

TEST_F(AListener, RejectsAWrongSecretAndMalformedBytes) {
  auto listener = listen();
  std::thread clients([&] {
    EXPECT_FALSE(join("another secret"));
    const auto unauthenticated = connect();
    const std::string garbage(200, '\xff');
    EXPECT_EQ(send_all(unauthenticated.get(), garbage.data(), garbage.size(), in(seconds(30))), IoResult::ok);
    EXPECT_TRUE(is_closed(unauthenticated.get()));
    EXPECT_TRUE(join());
  });
  EXPECT_TRUE(listener.next(in(seconds(30))));
  clients.join();
}

TEST_F(AListener, AFalseListenerCannotAnswerAndLearnsNothing) {
  const auto impostor = listen_on(name_);
  std::thread member([&] { EXPECT_FALSE(join()); });
  UniqueFd socket;
  while (!(socket = accept_from(impostor.get()))) ASSERT_TRUE(wait_readable(impostor.get(), in(seconds(30))));
  const std::string nonce(32, 'n');
  ASSERT_EQ(send_all(socket.get(), nonce.data(), nonce.size(), in(seconds(30))), IoResult::ok);
  std::string answer(64, '\0');
  ASSERT_EQ(receive_all(socket.get(), answer.data(), answer.size(), in(seconds(30))), IoResult::ok);
  EXPECT_EQ(answer.find(kSecret), std::string::npos);
  EXPECT_EQ(send_all(socket.get(), answer.data() + 32, 32, in(seconds(30))), IoResult::ok);
  EXPECT_TRUE(is_closed(socket.get()));
  member.join();
}

TEST_F(AListener, ClosesSilentConnections) {
  auto listener = listen(milliseconds(50));
  const auto silent = connect(), half = connect();
  ASSERT_EQ(send_all(half.get(), "incomplete", 10, in(seconds(30))), IoResult::ok);
  const UniqueFd cancel_fd(eventfd(0, EFD_CLOEXEC));
  std::thread loop([&] { EXPECT_FALSE(listener.next(in(seconds(600)), cancel_fd.get())); });
  EXPECT_TRUE(is_closed(silent.get()));
  EXPECT_TRUE(is_closed(half.get()));
  EXPECT_EQ(eventfd_write(cancel_fd.get(), 1), 0);
  loop.join();
}

TEST_F(AListener, ManyConnectionsDoNotBlockARank) {
  auto listener = listen();
  std::thread crowd([&] {
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 300; ++i) silent.push_back(connect());
    EXPECT_TRUE(join());
  });
  EXPECT_TRUE(listener.next(in(seconds(30))));
  crowd.join();
}

TEST_F(AListener, KeepsItsDeadlineDuringUnauthenticatedConnections) {
  auto listener = listen();
  std::atomic<bool> is_over = false;
  std::thread crowd([&] {
    while (!is_over) connect_to(name_);
  });
  EXPECT_FALSE(listener.next(in(milliseconds(300))));
  is_over = true;
  crowd.join();
}

TEST_F(AListener, StopsWaitingOnceItIsCancelled) {
  auto listener = listen();
  const UniqueFd cancel_fd(eventfd(1, EFD_CLOEXEC));
  EXPECT_FALSE(listener.next(in(seconds(60)), cancel_fd.get()));
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST_F(AListener, DoesNotSpinIfThereAreNoDescriptors) {
  EXPECT_TRUE(ended_well(fork_rank([&] {
    auto listener = listen();
    const auto visitor = connect();
    const rlimit limit{64, 64};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    std::vector<UniqueFd> all;
    while (auto copy = UniqueFd(dup(0))) all.push_back(std::move(copy));
    const auto before = cpu_seconds();
    EXPECT_FALSE(listener.next(in(seconds(1))));
    EXPECT_LT(cpu_seconds() - before, 0.3);
  })));
}

}  // namespace
}  // namespace perseus::testing
