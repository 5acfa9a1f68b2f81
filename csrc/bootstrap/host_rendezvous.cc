#include "bootstrap/host_rendezvous.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "bootstrap/authenticated_listener.h"
#include "bootstrap/authentication.h"

namespace perseus {
namespace {

constexpr std::size_t kSecretBytes = 32;
// The time after which a connection that rank 0 has closed is tried again; other programs may keep its port busy.
constexpr std::chrono::milliseconds kRetry{100};

// In a job with more hosts, not all of them are connected with each other: each connection needs a descriptor.
constexpr std::size_t kMostLeadersInAMesh = 128;

constexpr int kMostKeepaliveSeconds = 32767;  // Linux's limit for the time between two probes

using Greeting = std::int32_t;  // the rank, sent after the handshake
// Rank 0's answer to the greeting. A connection that ends without it was never part of the watch.
constexpr char kAdmitted = 'a';

struct Endpoint {
  std::string address;
  int port = 0;
};

// The text that rank 0 sends to all ranks over the bootstrap. Leaders send theirs without a secret.
struct Invitation {
  int timeout_seconds = 0;
  std::string secret = "-";
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

// The address of a socket.
class Name {
 public:
  static std::optional<Name> of(const Endpoint& endpoint) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(endpoint.address.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found) != 0) return {};
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
    Name name;
    name.length_ = found->ai_addrlen;
    std::memcpy(&name.bytes_, found->ai_addr, found->ai_addrlen);
    return name;
  }
  int family() const { return bytes_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_storage bytes_{};
  socklen_t length_ = 0;
};

bool is_listed(const std::string& names, const char* name) {
  std::istringstream in(names);
  for (std::string each; std::getline(in, each, ',');) {
    if (each == name) return true;
  }
  return false;
}

// Returns the addresses of interfaces that are up. Loopback is included only if it is named or there is nothing else.
std::vector<std::string> own_addresses(const std::string& interfaces) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<std::string> addresses, loopback;
  for (const auto* each = list; each != nullptr; each = each->ifa_next) {
    const int family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || (each->ifa_flags & IFF_UP) == 0) continue;
    if (!interfaces.empty() && !is_listed(interfaces, each->ifa_name)) continue;
    std::array<char, NI_MAXHOST> text{};
    const auto length = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (getnameinfo(each->ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (std::strchr(text.data(), '%') != nullptr) continue;  // a link-local address
    ((each->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).emplace_back(text.data());
  }
  return addresses.empty() ? loopback : addresses;
}

// Listens at a port that the system chooses. Returns nothing if the address cannot be bound, for example while IPv6
// still checks it for duplicates.
UniqueFd listen_at(Endpoint& endpoint) {
  const auto name = Name::of(endpoint);
  if (!name) return {};
  UniqueFd fd(socket(name->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  auto* plain = reinterpret_cast<sockaddr*>(&bound);
  if (bind(fd.get(), name->get(), name->length()) != 0 || listen(fd.get(), SOMAXCONN) != 0) return {};
  if (getsockname(fd.get(), plain, &length) != 0) return {};
  // The port is at the same place in both kinds of address.
  endpoint.port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return fd;
}

void set_option(int socket, int option, int value) { setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value); }

// Makes the kernel break the connection this time after the first probe without an answer, within 10 %. Same as
// set_keepalive() in perseus_like/launch/mpi/rank_main.py.
void set_heartbeat(int socket, int timeout_seconds) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int interval = std::clamp(timeout_seconds / 10, 1, kMostKeepaliveSeconds);
  set_option(socket, TCP_NODELAY, 1);
  set_option(socket, TCP_KEEPIDLE, interval);
  set_option(socket, TCP_KEEPINTVL, interval);
  // The kernel counts from the last answer, which is one interval before that probe, and compares at each probe. Half
  // an interval less ensures that a probe in time is not one too late.
  const auto unanswered = std::int64_t{timeout_seconds} * 1000 + std::int64_t{interval} * 500;
  set_option(socket, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<std::int64_t>(unanswered, std::numeric_limits<int>::max())));
}

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

bool is_expected(int rank, const std::vector<int>& members, const std::vector<HostPeer>& peers) {
  const bool is_member = rank != 0 && std::find(members.begin(), members.end(), rank) != members.end();
  return is_member && std::none_of(peers.begin(), peers.end(), [&](const auto& peer) { return peer.rank == rank; });
}

// Returns the connections of those members that connect to rank 0 before the deadline.
std::vector<HostPeer> receive_members(std::vector<UniqueFd> listeners, const std::vector<int>& members,
                                      const Invitation& invitation, Deadline deadline) {
  if (listeners.empty()) return {};
  const auto expected = members.size() * listeners.size();
  AuthenticatedListener listener(std::move(listeners), invitation.secret, expected, sizeof(Greeting));
  std::vector<HostPeer> peers;
  while (peers.size() + 1 < members.size()) {
    auto admitted = listener.next(deadline);
    if (!admitted) break;
    Greeting rank = 0;
    std::memcpy(&rank, admitted->greeting.data(), sizeof rank);
    if (!is_expected(rank, members, peers)) continue;
    set_heartbeat(admitted->socket.get(), invitation.timeout_seconds);
    if (send_all(admitted->socket.get(), &kAdmitted, sizeof kAdmitted, deadline) != IoResult::ok) continue;
    peers.push_back({rank, std::move(admitted->socket)});
  }
  return peers;
}

// Returns nothing if connecting fails at once.
UniqueFd begin_connecting(const Endpoint& endpoint) {
  const auto name = Name::of(endpoint);
  if (!name) return {};
  UniqueFd fd(socket(name->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || (connect(fd.get(), name->get(), name->length()) != 0 && errno != EINPROGRESS)) return {};
  return fd;
}

// Returns whether a socket that poll() has returned is connected.
bool has_connected(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

// A connection to one of rank 0's addresses whose handshake is not finished.
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
    if (!is_connected) return is_connected = has_connected(socket.get());
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

// Tries all addresses of rank 0 at once, and returns the first connection whose handshake is finished, or nothing. Sets
// `was_reached` if an address has accepted a connection.
UniqueFd try_to_join(const Invitation& invitation, Deadline deadline, bool& was_reached) {
  std::vector<Attempt> attempts;
  for (const auto& endpoint : invitation.endpoints) {
    if (auto socket = begin_connecting(endpoint)) {
      attempts.push_back({std::move(socket), false, Handshake(invitation.secret, Handshake::End::connecting)});
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

// Sends this rank's number to rank 0. Returns false if rank 0 does not answer or closes the connection, as it does
// after its deadline. `patience` makes this deadline later than rank 0's, which began to wait at another time.
bool is_admitted(int socket, int rank, Deadline deadline, std::chrono::milliseconds patience) {
  const Greeting greeting = rank;
  char answer = 0;
  return send_all(socket, &greeting, sizeof greeting, deadline) == IoResult::ok &&
         receive_all(socket, &answer, sizeof answer, deadline + patience) == IoResult::ok && answer == kAdmitted;
}

// Returns a connection that rank 0 has admitted, or nothing if there is none before the deadline.
UniqueFd join(int rank, const Invitation& invitation, Deadline deadline, std::chrono::milliseconds patience) {
  for (;;) {
    bool was_reached = false;
    if (auto socket = try_to_join(invitation, deadline, was_reached)) {
      set_heartbeat(socket.get(), invitation.timeout_seconds);
      if (is_admitted(socket.get(), rank, deadline, patience)) return socket;
    }
    if (!was_reached || std::chrono::steady_clock::now() >= deadline) return {};
    std::this_thread::sleep_for(kRetry);
  }
}

bool are_connected(std::size_t one, std::size_t other, std::size_t leaders) {
  const auto distance = other - one;
  return leaders <= kMostLeadersInAMesh || std::has_single_bit(distance) || std::has_single_bit(leaders - distance);
}

// Tries all addresses of these ranks at once, and returns the first connection to each.
std::vector<HostPeer> connect_leaders(const std::vector<std::pair<int, Endpoint>>& targets, int timeout_seconds,
                                      Deadline deadline) {
  std::vector<HostPeer> attempts, made;
  for (const auto& [rank, endpoint] : targets) {
    if (auto socket = begin_connecting(endpoint)) attempts.push_back({rank, std::move(socket)});
  }
  while (!attempts.empty()) {
    std::vector<pollfd> entries;
    entries.reserve(attempts.size());
    for (const auto& attempt : attempts) entries.push_back({attempt.socket.get(), POLLOUT, 0});
    const int ready = poll(entries.data(), entries.size(), milliseconds_to(deadline));
    if (ready < 0 && errno == EINTR) continue;
    const auto entry = std::ranges::find_if(entries, [](const pollfd& each) { return each.revents != 0; });
    if (entry == entries.end()) break;
    const auto at = attempts.begin() + (entry - entries.begin());
    auto attempt = std::move(*at);
    attempts.erase(at);
    if (!has_connected(attempt.socket.get())) continue;
    set_heartbeat(attempt.socket.get(), timeout_seconds);
    std::erase_if(attempts, [&](const HostPeer& other) { return other.rank == attempt.rank; });
    made.push_back(std::move(attempt));
  }
  return made;
}

// Limits what strangers can leave at listeners that stay open.
std::vector<UniqueFd> bounded(std::vector<UniqueFd> listeners, std::size_t connections) {
  constexpr int kLeast = 1;
  for (const auto& listener : listeners) {
    setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &kLeast, sizeof kLeast);
    listen(listener.get(), static_cast<int>(connections));
  }
  return listeners;
}

// Adds this leader's connections to others, whose texts are in `texts` by rank.
void join_leaders(HostConnections& connections, int rank, const std::vector<int>& leaders,
                  const std::vector<std::string>& texts, int timeout_seconds,
                  const std::vector<std::string>& host_names, Deadline deadline) {
  const auto place = static_cast<std::size_t>(std::ranges::find(leaders, rank) - leaders.begin());
  std::vector<std::pair<int, Endpoint>> targets;
  std::set<int> absent;
  for (auto other = place + 1; other < leaders.size(); ++other) {
    const auto theirs = Invitation::parse(texts[static_cast<std::size_t>(leaders[other])]);
    if (!theirs || !are_connected(place, other, leaders.size())) continue;
    absent.insert(leaders[other]);
    for (const auto& endpoint : theirs->endpoints) targets.emplace_back(leaders[other], endpoint);
  }
  connections.between_leaders = connect_leaders(targets, timeout_seconds, deadline);
  for (const auto& peer : connections.between_leaders) absent.erase(peer.rank);
  std::string names;
  for (const int other : absent) names += (names.empty() ? "" : ", ") + host_names[static_cast<std::size_t>(other)];
  if (names.empty()) return;
  log(LogLevel::warning, "host " + host_names[static_cast<std::size_t>(rank)] + " does not reach " + names +
                             " by TCP. Continuing without a heartbeat between these hosts: that the network between "
                             "them is cut may be noticed minutes later, or never. Set "
                             "PERSEUS_NETWORK_INTERFACES to the interface that connects the hosts");
}

void warn_of_absent(const std::vector<int>& members, const std::vector<HostPeer>& peers,
                    const std::vector<std::string>& host_names, const std::vector<Endpoint>& endpoints) {
  std::string absent;
  for (const int rank : members) {
    const auto is_here = [&](const HostPeer& peer) { return peer.rank == rank; };
    if (rank == 0 || std::any_of(peers.begin(), peers.end(), is_here)) continue;
    absent += (absent.empty() ? "rank " : ", rank ") + std::to_string(rank) + " on " +
              host_names[static_cast<std::size_t>(rank)];
  }
  if (absent.empty()) return;
  std::string tried;
  for (const auto& each : endpoints) tried += (tried.empty() ? "" : ", ") + each.address;
  log(LogLevel::warning,
      "no heartbeat to " + absent + ": rank 0 was not reached by TCP (tried " + (tried.empty() ? "no address" : tried) +
          "). Continuing without a heartbeat to these hosts: their loss may be noticed minutes later, or never. "
          "Set PERSEUS_NETWORK_INTERFACES to the interface that connects the hosts");
}

}  // namespace

HostConnections connect_hosts(Bootstrap& bootstrap, const std::vector<int>& members, const std::vector<int>& leaders,
                              const std::vector<std::string>& host_names, const HeartbeatOptions& options) {
  const int rank = bootstrap.rank();
  const bool is_leader = std::ranges::find(leaders, rank) != leaders.end();
  Invitation mine;
  std::vector<UniqueFd> listeners;
  if ((rank == 0 || (is_leader && leaders.size() > 1)) && options.timeout.count() > 0) {
    mine.timeout_seconds = static_cast<int>(options.timeout.count());
    if (rank == 0) mine.secret = hex_text(random_bytes(kSecretBytes));
    for (const auto& address : own_addresses(options.interfaces)) {
      Endpoint endpoint{address};
      if (auto listener = listen_at(endpoint)) {
        listeners.push_back(std::move(listener));
        mine.endpoints.push_back(endpoint);
      }
    }
  }
  const auto texts = bootstrap.allgather(mine.timeout_seconds > 0 ? mine.text() : "");
  const auto invitation = Invitation::parse(texts.front());
  if (!invitation || std::find(members.begin(), members.end(), rank) == members.end()) return {};

  const auto deadline = std::chrono::steady_clock::now() + options.patience;
  HostConnections connections;
  if (rank != 0) connections.listeners = bounded(std::move(listeners), leaders.size());
  if (rank == 0) {
    connections.peers = receive_members(std::move(listeners), members, mine, deadline);
    warn_of_absent(members, connections.peers, host_names, mine.endpoints);
  } else if (auto socket = join(rank, *invitation, deadline, options.patience)) {
    connections.peers.push_back({0, std::move(socket)});
    if (is_leader) {
      join_leaders(connections, rank, leaders, texts, invitation->timeout_seconds, host_names, deadline);
    }
  }
  return connections;
}

}  // namespace perseus
