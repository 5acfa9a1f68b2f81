#include "bootstrap/host_rendezvous.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <future>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "bootstrap/authenticated_listener.h"
#include "bootstrap/authentication.h"
#include "bootstrap/endpoint.h"

namespace perseus {
namespace {

constexpr std::size_t kSecretBytes = 32;
// The time after which a connection that the other member has closed is tried again; other programs may keep its port
// busy.
constexpr std::chrono::milliseconds kRetry{100};

constexpr int kMostKeepaliveSeconds = 32767;  // Linux's limit for the time between two probes

using Greeting = std::int32_t;  // the rank, sent after the handshake
// The other member's answer to the greeting. A connection that ends without it was never part of the watch.
constexpr char kAdmitted = 'a';

// The text that a member to which others connect sends to all ranks over the bootstrap.
struct Invitation {
  int timeout_seconds = 0;
  std::string secret;
  std::vector<Endpoint> endpoints;

  std::string text() const {
    std::ostringstream out;
    out << timeout_seconds << ' ' << secret;
    for (const auto& each : endpoints) out << ' ' << each.address << ' ' << each.port;
    return out.str();
  }
  static std::optional<Invitation> parse(const std::string& text) {
    Invitation invitation;
    std::istringstream in(text);
    if (!(in >> invitation.timeout_seconds >> invitation.secret)) return {};
    for (Endpoint each; in >> each.address >> each.port;) invitation.endpoints.push_back(each);
    return invitation;
  }
};

void set_option(int socket, int option, int value) { setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value); }

bool is_expected(int rank, const std::vector<int>& callers, const std::vector<HostPeer>& peers) {
  return std::ranges::find(callers, rank) != callers.end() &&
         std::ranges::none_of(peers, [&](const auto& peer) { return peer.rank == rank; });
}

// Returns the connections of those callers that connect before the deadline.
std::vector<HostPeer> receive_callers(std::vector<UniqueFd> listeners, const std::vector<int>& callers,
                                      const Invitation& invitation, int timeout_seconds, Deadline deadline) {
  if (listeners.empty()) return {};
  std::vector<HostPeer> peers;
  const auto expected = (callers.size() + 1) * listeners.size();
  AuthenticatedListener listener(std::move(listeners), invitation.secret, expected, sizeof(Greeting));
  for (std::size_t missing = callers.size(); missing > 0;) {
    auto admitted = listener.next(deadline);
    if (!admitted) break;
    Greeting rank = 0;
    std::memcpy(&rank, admitted->greeting.data(), sizeof rank);
    if (!is_expected(rank, callers, peers)) continue;
    set_heartbeat(admitted->socket.get(), std::chrono::seconds(timeout_seconds));
    if (send_all(admitted->socket.get(), &kAdmitted, sizeof kAdmitted, deadline) != IoResult::ok) continue;
    peers.push_back({rank, std::move(admitted->socket)});
    --missing;
  }
  return peers;
}

// A connection to one of a member's addresses whose handshake is not finished.
struct Attempt {
  UniqueFd socket;
  bool is_connected = false;
  Handshake handshake;

  pollfd entry() const {
    return {socket.get(), static_cast<short>(is_connected ? POLLIN : POLLOUT), 0};  // NOLINT(google-runtime-int)
  }
  bool is_done() const { return handshake.missing() == 0; }

  // Handles the event that entry() asks for. Returns false if the attempt has failed.
  bool advance() {
    if (!is_connected) return is_connected = connecting_error(socket.get()) == 0;
    std::string bytes(handshake.missing(), '\0');
    const auto got = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    bytes.resize(static_cast<std::size_t>(got));
    const auto answer = handshake.take(bytes);
    return answer && send(socket.get(), answer->data(), answer->size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
                         static_cast<ssize_t>(answer->size());
  }
};

// Tries all addresses of a member at once, and returns the first connection whose handshake is finished, or nothing.
// Sets `was_reached` if an address has accepted a connection.
UniqueFd try_to_join(const Invitation& invitation, Deadline deadline, bool& was_reached) {
  std::vector<Attempt> attempts;
  for (const auto& endpoint : invitation.endpoints) {
    if (auto begun = begin_connecting(endpoint); begun.socket) {
      attempts.push_back({std::move(begun.socket), false, Handshake(invitation.secret, Handshake::End::connecting)});
    }
  }
  while (!attempts.empty()) {
    std::vector<pollfd> entries;
    entries.reserve(attempts.size());
    for (const auto& attempt : attempts) entries.push_back(attempt.entry());
    const int ready = poll(entries.data(), entries.size(), milliseconds_to(deadline));
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    for (std::size_t i = entries.size(); ready > 0 && i-- > 0;) {
      if (entries[i].revents == 0) continue;
      auto& attempt = attempts[i];
      const bool is_alive = attempt.advance();
      was_reached = was_reached || attempt.is_connected;
      if (is_alive && attempt.is_done()) return std::move(attempt.socket);
      if (!is_alive) attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return {};
}

// Sends this rank's number. Returns false if the other member does not answer or closes the connection, as it
// does after its deadline. `patience` makes this deadline later than the other's, which began to wait at another time.
bool is_admitted(int socket, int rank, Deadline deadline, std::chrono::milliseconds patience) {
  const Greeting greeting = rank;
  char answer = 0;
  return send_all(socket, &greeting, sizeof greeting, deadline) == IoResult::ok &&
         receive_all(socket, &answer, sizeof answer, deadline + patience) == IoResult::ok && answer == kAdmitted;
}

// Returns a connection that the other member has admitted, or nothing if there is none before the deadline.
UniqueFd join(int rank, const Invitation& invitation, int timeout_seconds, Deadline deadline,
              std::chrono::milliseconds patience) {
  for (;;) {
    bool was_reached = false;
    if (auto socket = try_to_join(invitation, deadline, was_reached)) {
      set_heartbeat(socket.get(), std::chrono::seconds(timeout_seconds));
      if (is_admitted(socket.get(), rank, deadline, patience)) return socket;
    }
    if (!was_reached || std::chrono::steady_clock::now() >= deadline) return {};
    std::this_thread::sleep_for(kRetry);
  }
}

void warn_of_absent(int rank, const std::vector<int>& callers, const std::vector<HostPeer>& peers,
                    const std::vector<std::string>& host_names, const std::vector<Endpoint>& endpoints) {
  const auto name = [&](int each) {
    return "rank " + std::to_string(each) + " on " + host_names[static_cast<std::size_t>(each)];
  };
  std::string absent;
  for (const int caller : callers) {
    if (is_expected(caller, callers, peers)) absent += (absent.empty() ? "" : ", ") + name(caller);
  }
  if (absent.empty()) return;
  std::string tried;
  for (const auto& each : endpoints) tried += (tried.empty() ? "" : ", ") + each.address;
  log(LogLevel::warning,
      "no heartbeat to " + absent + ": " + name(rank) + " was not reached by TCP (tried " +
          (tried.empty() ? "no address" : tried) +
          "). Continuing without a heartbeat between these hosts: the loss of a host may be noticed minutes later, or "
          "never. Set PERSEUS_NETWORK_INTERFACES to the interface that connects the hosts");
}

// Returns the addresses at which this rank listens.
std::vector<std::string> addresses_to_listen_at(int rank, const std::vector<std::string>& host_names,
                                                const std::string& interfaces) {
  auto addresses = own_addresses(interfaces);
  // The names of interfaces concern rank 0's host, and may differ on others.
  if (!addresses.empty() || interfaces.empty() || rank == 0) return addresses;
  log(LogLevel::warning, host_names[static_cast<std::size_t>(rank)] + " has none of PERSEUS_NETWORK_INTERFACES=" +
                             interfaces + ": rank " + std::to_string(rank) +
                             " listens for the heartbeat at all addresses of this host but loopback. Add the name of "
                             "its interface to the list");
  return own_addresses("");
}

// Returns the members that connect to the one at this place.
std::vector<int> callers_of(std::size_t place, const std::vector<int>& members) {
  std::vector<int> callers;
  for (auto other = place + 1; other < members.size(); ++other) {
    const auto places = places_to_connect(other, members.size());
    if (std::ranges::find(places, place) != places.end()) callers.push_back(members[other]);
  }
  return callers;
}

}  // namespace

std::chrono::seconds heartbeat_interval(std::chrono::seconds timeout) {
  return std::clamp(timeout / 10, std::chrono::seconds(1), std::chrono::seconds(kMostKeepaliveSeconds));
}

void set_heartbeat(int socket, std::chrono::seconds timeout) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int interval = static_cast<int>(heartbeat_interval(timeout).count());
  set_option(socket, TCP_NODELAY, 1);
  set_option(socket, TCP_KEEPIDLE, interval);
  set_option(socket, TCP_KEEPINTVL, interval);
  // The kernel counts from the last answer, which is one interval before that probe, and compares at each probe. Half
  // an interval less ensures that a probe in time is not one too late.
  const auto unanswered = std::int64_t{timeout.count()} * 1000 + std::int64_t{interval} * 500;
  set_option(socket, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<std::int64_t>(unanswered, std::numeric_limits<int>::max())));
}

std::vector<std::size_t> places_to_connect(std::size_t place, std::size_t members) {
  std::vector<std::size_t> places;
  if (place == 0) return places;
  places.push_back(parent_place(place));
  if (place - 1 != places.back()) places.push_back(place - 1);
  if (place == members - 1 && places.front() != 0) places.push_back(0);
  return places;
}

HostConnections connect_hosts(Bootstrap& bootstrap, const std::vector<int>& members,
                              const std::vector<std::string>& host_names, const HeartbeatOptions& options) {
  const int rank = bootstrap.rank();
  const auto place = static_cast<std::size_t>(std::ranges::find(members, rank) - members.begin());
  const auto callers = callers_of(place, members);
  Invitation mine;
  std::vector<UniqueFd> listeners;
  // Another rank does not know yet whether rank 0 has a timeout.
  if (rank == 0 ? options.timeout.count() > 0 : !callers.empty()) {
    mine.timeout_seconds = static_cast<int>(options.timeout.count());
    mine.secret = hex_text(random_bytes(kSecretBytes));
    for (const auto& address : addresses_to_listen_at(rank, host_names, options.interfaces)) {
      Endpoint endpoint{address};
      if (auto listener = listen_at(endpoint)) {
        listeners.push_back(std::move(listener));
        mine.endpoints.push_back(endpoint);
      }
    }
  }
  const auto texts = bootstrap.allgather(mine.secret.empty() ? "" : mine.text());
  const auto of_rank_0 = Invitation::parse(texts.front());
  if (!of_rank_0) return {};

  const int timeout_seconds = of_rank_0->timeout_seconds;
  HostConnections connections{.peers = {}, .timeout = std::chrono::seconds(timeout_seconds)};
  if (place == members.size()) return connections;
  const auto deadline = std::chrono::steady_clock::now() + options.patience;
  const auto places = places_to_connect(place, members.size());
  // At the same time: a member that does not reach another one, or reaches it late, still has the others. Without room
  // for a thread, they are done one after the other.
  std::vector<std::future<UniqueFd>> joining;
  joining.reserve(places.size());
  for (const auto other : places) {
    joining.push_back(std::async(std::launch::async | std::launch::deferred, [&, other] {
      const auto invitation = Invitation::parse(texts[static_cast<std::size_t>(members[other])]);
      return invitation ? join(rank, *invitation, timeout_seconds, deadline, options.patience) : UniqueFd();
    }));
  }
  auto accepted = receive_callers(std::move(listeners), callers, mine, timeout_seconds, deadline);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (auto socket = joining[i].get()) connections.peers.push_back({members[places[i]], std::move(socket)});
  }
  for (auto& caller : accepted) connections.peers.push_back(std::move(caller));
  connections.is_complete = connections.peers.size() == callers.size() + places.size();
  warn_of_absent(rank, callers, connections.peers, host_names, mine.endpoints);
  return connections;
}

}  // namespace perseus
