#include "bootstrap/host_meeting.h"

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
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "bootstrap/local_star.h"

namespace perseus {
namespace {

constexpr std::size_t kSecretLength = 48;  // of random_star_address()
using Secret = std::array<char, kSecretLength>;

// Both sides show a secret that travelled another way, so that neither takes a stranger for a rank.
struct Hello {
  std::int32_t rank = 0;
  Secret secret{};
};

Secret as_secret(std::string_view text) {
  Secret secret{};
  std::copy_n(text.data(), std::min(text.size(), secret.size()), secret.data());
  return secret;
}

// What rank 0 hands to all, as text.
struct Invitation {
  int timeout_seconds = 0;
  int port = 0;
  std::string asked, answered;  // secrets
  std::vector<std::string> addresses;

  std::string text() const {
    std::ostringstream out;
    out << timeout_seconds << ' ' << port << ' ' << asked << ' ' << answered;
    for (const auto& address : addresses) out << ' ' << address;
    return out.str();
  }
  static std::optional<Invitation> parse(const std::string& text) {
    Invitation invitation;
    std::istringstream in(text);
    if (!(in >> invitation.timeout_seconds >> invitation.port >> invitation.asked >> invitation.answered)) return {};
    for (std::string address; in >> address;) invitation.addresses.push_back(address);
    return invitation;
  }
};

bool is_listed(const std::string& names, const char* name) {
  std::istringstream in(names);
  for (std::string each; std::getline(in, each, ',');) {
    if (each == name) return true;
  }
  return false;
}

// Of the interfaces that are up; loopback only where it is asked for, or nothing else is there.
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
    if (std::strchr(text.data(), '%') != nullptr) continue;  // of the link only
    ((each->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).emplace_back(text.data());
  }
  return addresses.empty() ? loopback : addresses;
}

// Taken by IPv6 and IPv4 alike where there is IPv6. Empty: there is no TCP.
UniqueFd listen_anywhere(int& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    const int off = 0;
    if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage name{};
    name.ss_family = static_cast<sa_family_t>(family);
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* plain = reinterpret_cast<sockaddr*>(&name);
    if (bind(fd.get(), plain, length) != 0 || listen(fd.get(), SOMAXCONN) != 0) continue;
    if (getsockname(fd.get(), plain, &length) != 0) continue;
    // The port is at the same place in both kinds of address.
    port = ntohs(reinterpret_cast<const sockaddr_in*>(&name)->sin_port);
    return fd;
  }
  return {};
}

void set_option(int socket, int option, int value) { setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value); }

// Makes the kernel break the connection this long after the first probe without an answer, within 10 %. As
// set_keepalive in perseus_like/launch/mpi/rank_main.py.
void set_heartbeat(int socket, int timeout_seconds) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int interval = std::max(1, timeout_seconds / 10);
  set_option(socket, TCP_NODELAY, 1);
  set_option(socket, TCP_KEEPIDLE, interval);
  set_option(socket, TCP_KEEPINTVL, interval);
  // The kernel counts from the last answer, one interval before that probe, and compares at each probe. Half an
  // interval less makes sure that a probe in time is not one too late.
  set_option(socket, TCP_USER_TIMEOUT, timeout_seconds * 1000 + interval * 500);
}

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

std::optional<int> admit(int socket, const Invitation& invitation, Deadline deadline) {
  const auto patience = std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  Hello hello;
  if (receive_all(socket, &hello, sizeof hello, patience) != Wire::ok) return {};
  if (hello.secret != as_secret(invitation.asked)) return {};
  const auto answer = as_secret(invitation.answered);
  if (send_all(socket, answer.data(), answer.size(), patience) != Wire::ok) return {};
  return hello.rank;
}

// At rank 0: those of `members` that come before the deadline. Who tries several addresses speaks on one connection
// only, so nobody is waited for who does not speak.
std::vector<HostPeer> receive_members(int listener, const std::vector<int>& members, const Invitation& invitation,
                                      Deadline deadline) {
  std::vector<HostPeer> peers;
  std::vector<UniqueFd> silent;
  while (peers.size() + 1 < members.size()) {
    std::vector<pollfd> entries{{listener, POLLIN, 0}};
    for (const auto& socket : silent) entries.push_back({socket.get(), POLLIN, 0});
    const int ready = poll(entries.data(), entries.size(), milliseconds_to(deadline));
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    for (std::size_t i = entries.size(); ready > 0 && i-- > 1;) {
      if (entries[i].revents == 0) continue;
      auto socket = std::move(silent[i - 1]);
      silent.erase(silent.begin() + static_cast<std::ptrdiff_t>(i - 1));
      const auto rank = admit(socket.get(), invitation, deadline);
      if (!rank) continue;
      set_heartbeat(socket.get(), invitation.timeout_seconds);
      peers.push_back({*rank, std::move(socket)});
    }
    if (entries[0].revents == 0) continue;
    while (auto socket = accept_from(listener)) silent.push_back(std::move(socket));
  }
  return peers;
}

// Connecting, or empty at once where this cannot be.
UniqueFd begin_connecting(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) return {};
  return fd;
}

bool shake_hands(int socket, int rank, const Invitation& invitation, Deadline deadline) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) return false;
  const Hello hello{rank, as_secret(invitation.asked)};
  Secret answer{};
  return send_all(socket, &hello, sizeof hello, deadline) == Wire::ok &&
         receive_all(socket, answer.data(), answer.size(), deadline) == Wire::ok &&
         answer == as_secret(invitation.answered);
}

// A connection to rank 0 at the first of its addresses that answers as it should; empty if none does.
UniqueFd join(int rank, const Invitation& invitation, Deadline deadline) {
  std::vector<UniqueFd> attempts;
  for (const auto& address : invitation.addresses) {
    if (auto fd = begin_connecting(address, invitation.port)) attempts.push_back(std::move(fd));
  }
  while (!attempts.empty()) {
    std::vector<pollfd> entries;
    for (const auto& attempt : attempts) entries.push_back({attempt.get(), POLLOUT, 0});
    const int ready = poll(entries.data(), entries.size(), milliseconds_to(deadline));
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    for (std::size_t i = entries.size(); i-- > 0;) {
      if (entries[i].revents == 0) continue;
      auto socket = std::move(attempts[i]);
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
      if (!shake_hands(socket.get(), rank, invitation, deadline)) continue;
      set_heartbeat(socket.get(), invitation.timeout_seconds);
      return socket;
    }
  }
  return {};
}

void warn_of_absent(const std::vector<int>& members, const std::vector<HostPeer>& peers,
                    const std::vector<std::string>& host_names, const std::vector<std::string>& addresses) {
  std::string absent;
  for (const int rank : members) {
    const auto is_here = [&](const HostPeer& peer) { return peer.rank == rank; };
    if (rank == 0 || std::any_of(peers.begin(), peers.end(), is_here)) continue;
    absent += (absent.empty() ? "rank " : ", rank ") + std::to_string(rank) + " on " +
              host_names[static_cast<std::size_t>(rank)];
  }
  if (absent.empty()) return;
  std::string tried;
  for (const auto& address : addresses) tried += (tried.empty() ? "" : ", ") + address;
  log(LogLevel::warning, "no heartbeat to " + absent + ": rank 0 was not reached by TCP (tried " +
                             (tried.empty() ? "no address" : tried) +
                             "). The job goes on; that one of these is lost is noticed by MPI alone, which may take "
                             "minutes. Name the interface with PERSEUS_NETWORK_INTERFACES");
}

}  // namespace

std::vector<HostPeer> meet_hosts(Bootstrap& bootstrap, const std::vector<int>& members,
                                 const std::vector<std::string>& host_names, const HeartbeatOptions& options) {
  const int rank = bootstrap.rank();
  Invitation mine;
  UniqueFd listener;
  if (rank == 0 && options.timeout.count() > 0) {
    listener = listen_anywhere(mine.port);
    mine.timeout_seconds = static_cast<int>(options.timeout.count());
    mine.asked = random_star_address();
    mine.answered = random_star_address();
    mine.addresses = own_addresses(options.interfaces);
  }
  const auto texts = bootstrap.allgather(listener ? mine.text() : "");
  const auto invitation = Invitation::parse(texts.front());
  if (!invitation || std::find(members.begin(), members.end(), rank) == members.end()) return {};

  const auto deadline = std::chrono::steady_clock::now() + options.patience;
  std::vector<HostPeer> peers;
  if (rank == 0) {
    peers = receive_members(listener.get(), members, mine, deadline);
    warn_of_absent(members, peers, host_names, mine.addresses);
  } else if (auto socket = join(rank, *invitation, deadline)) {
    peers.push_back({0, std::move(socket)});
  }
  return peers;
}

}  // namespace perseus
