// Tests the TCP connections between hosts, with unauthenticated connections to rank 0 and false listeners in its place.
#include "bootstrap/host_rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "bootstrap/authenticated_listener.h"
#include "bootstrap/local/local_socket.h"

namespace perseus::testing {
namespace {

using std::chrono::seconds;

const std::vector<int> kMembers = {0, 1};
const std::vector<std::string> kHosts = {"a", "b"};

Deadline soon() { return std::chrono::steady_clock::now() + seconds(30); }

// A bootstrap that passes rank 0's text to the test, and to rank 1 when the test allows it.
class Script {
 public:
  void set(std::string text) {
    const std::scoped_lock lock(mutex_);
    text_ = std::move(text);
    is_set_ = true;
    changed_.notify_all();
  }
  std::string wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_set_; });
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
  std::string text_;
};

class Actor : public Bootstrap {
 public:
  Actor(int rank, Script& script) : rank_(rank), script_(script) {}
  std::string_view name() const override { return "test"; }
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::vector<std::string> allgather(std::string_view mine) override {
    if (rank_ == 0) script_.set(std::string(mine));
    return {script_.wait(), ""};
  }

 private:
  int rank_;
  Script& script_;
};

struct Invitation {
  int timeout_seconds = 0;
  std::string secret;
  std::map<std::string, int> ports;  // by address

  explicit Invitation(const std::string& text) {
    std::istringstream in(text);
    in >> timeout_seconds >> secret;
    std::string address;
    for (int port = 0; in >> address >> port;) ports[address] = port;
  }
};

sockaddr_in name_of(const std::string& address, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  return name;
}

// Connects over IPv4 without the secret. Returns nothing if no process listens there.
UniqueFd connect_without_secret(const std::string& address, int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto name = name_of(address, port);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return {};
  return socket;
}

// Listens over IPv4 in the place of rank 0, and gives the script the text with which rank 0 invites.
UniqueFd listen_as_rank_zero(Script& script, const std::string& secret, int flags = 0) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  auto name = name_of("127.0.0.1", 0);
  socklen_t length = sizeof name;
  auto* plain = reinterpret_cast<sockaddr*>(&name);
  EXPECT_EQ(bind(listener.get(), plain, length), 0);
  EXPECT_EQ(listen(listener.get(), 10), 0);
  EXPECT_EQ(getsockname(listener.get(), plain, &length), 0);
  script.set("30 " + secret + " 127.0.0.1 " + std::to_string(ntohs(name.sin_port)));
  return listener;
}

struct Connections {
  std::vector<HostPeer> zero, one;
};

// Connects both ranks over loopback. Calls `meanwhile` while rank 0 waits, before rank 1 connects.
Connections connect_both(const std::function<void(const Invitation&)>& meanwhile) {
  Script script;
  Connections connections;
  const HeartbeatOptions options{.interfaces = "lo", .patience = seconds(30)};
  std::thread zero([&] {
    Actor actor(0, script);
    connections.zero = connect_hosts(actor, kMembers, kHosts, options).peers;
  });
  meanwhile(Invitation(script.wait()));
  Actor actor(1, script);
  connections.one = connect_hosts(actor, kMembers, kHosts, options).peers;
  zero.join();
  return connections;
}

void expect_both(const Connections& connections) {
  ASSERT_EQ(connections.zero.size(), 1U);
  EXPECT_EQ(connections.zero.front().rank, 1);
  ASSERT_EQ(connections.one.size(), 1U);
  EXPECT_EQ(connections.one.front().rank, 0);
  ASSERT_EQ(send_all(connections.zero.front().socket.get(), "x", 1, soon()), IoResult::ok);
  char byte = 0;
  ASSERT_EQ(receive_all(connections.one.front().socket.get(), &byte, 1, soon()), IoResult::ok);
  EXPECT_EQ(byte, 'x');
}

TEST(HostRendezvous, SurvivesMalformedBytesAndSilence) {
  std::vector<UniqueFd> unauthenticated;
  expect_both(connect_both([&](const Invitation& invitation) {
    const auto port = invitation.ports.at("127.0.0.1");
    for (const std::string& garbage : {std::string(), std::string("half"), std::string(500, '\xff')}) {
      unauthenticated.push_back(connect_without_secret("127.0.0.1", port));
      ASSERT_TRUE(unauthenticated.back());
      ASSERT_EQ(send_all(unauthenticated.back().get(), garbage.data(), garbage.size(), soon()), IoResult::ok);
    }
  }));
}

TEST(HostRendezvous, ListensOnlyAtTheGivenInterfacesAndNoLongerThanNeeded) {
  Invitation found("");
  const auto connections = connect_both([&](const Invitation& invitation) {
    found = invitation;
    for (const auto& [address, port] : invitation.ports)
      EXPECT_TRUE(address == "127.0.0.1" || address == "::1") << address;
    // All of 127.0.0.0/8 is loopback, so this address reaches a listener on all interfaces.
    EXPECT_FALSE(connect_without_secret("127.0.0.2", invitation.ports.at("127.0.0.1")));
  });
  expect_both(connections);
  EXPECT_FALSE(connect_without_secret("127.0.0.1", found.ports.at("127.0.0.1")));
}

// Acts as rank 0 whose deadline is over when the greeting of rank 1 arrives, so it closes the connection.
TEST(HostRendezvous, ALateGreetingGivesNoConnection) {
  constexpr auto kSecret = "a-secret-of-one-word";
  Script script;
  std::vector<UniqueFd> listeners;
  listeners.push_back(listen_as_rank_zero(script, kSecret, SOCK_NONBLOCK));
  std::thread late([&] {
    AuthenticatedListener listener(std::move(listeners), kSecret, 1, sizeof(std::int32_t));
    EXPECT_TRUE(listener.next(soon()));
  });
  Actor one(1, script);
  const auto peers = connect_hosts(one, kMembers, kHosts, {.interfaces = "lo", .patience = seconds(30)}).peers;
  late.join();
  EXPECT_TRUE(peers.empty());
}

TEST(HostRendezvous, AFalseRankZeroIsRejectedAndLearnsNoSecret) {
  Script script;
  const std::string secret(64, 's');
  auto impostor = listen_as_rank_zero(script, secret);
  std::thread member([&] {
    Actor actor(1, script);
    EXPECT_TRUE(connect_hosts(actor, kMembers, kHosts, {.patience = seconds(600)}).peers.empty());
  });
  const UniqueFd socket(accept(impostor.get(), nullptr, nullptr));
  const std::string nonce(32, 'n');
  ASSERT_EQ(send_all(socket.get(), nonce.data(), nonce.size(), soon()), IoResult::ok);
  std::string answer(64, '\0');
  ASSERT_EQ(receive_all(socket.get(), answer.data(), answer.size(), soon()), IoResult::ok);
  EXPECT_EQ(answer.find(secret.substr(0, 8)), std::string::npos);
  EXPECT_EQ(send_all(socket.get(), answer.data() + 32, 32, soon()), IoResult::ok);  // its own answer
  EXPECT_EQ(receive_all(socket.get(), answer.data(), 1, soon()), IoResult::closed);
  impostor.reset();  // rank 1 tries again as long as it is heard
  member.join();
}

}  // namespace
}  // namespace perseus::testing
