#include "bootstrap/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

namespace perseus {
namespace {

// The address of a socket.
class SocketName {
 public:
  static std::optional<SocketName> of(const Endpoint& endpoint) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(endpoint.address.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found) != 0) return {};
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
    SocketName name;
    name.length_ = found->ai_addrlen;
    std::memcpy(&name.bytes_, found->ai_addr, found->ai_addrlen);
    return name;
  }
  // Returns the address of this end.
  static std::optional<SocketName> of(int socket) {
    SocketName name;
    name.length_ = sizeof name.bytes_;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&name.bytes_), &name.length_) != 0) return {};
    return name;
  }
  int family() const { return bytes_.ss_family; }
  // The port is at the same place in both kinds of address.
  int port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&bytes_)->sin_port); }
  std::string address() const { return numeric(get(), length_); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes_); }
  socklen_t length() const { return length_; }

  // Returns an empty text if the system cannot write the address.
  static std::string numeric(const sockaddr* address, socklen_t length) {
    std::array<char, NI_MAXHOST> text{};
    const int failed = getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    return failed != 0 ? std::string() : std::string(text.data());
  }

 private:
  sockaddr_storage bytes_{};
  socklen_t length_ = 0;
};

UniqueFd new_socket(int family) { return UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

bool is_listed(const std::string& names, const char* name) {
  std::istringstream in(names);
  for (std::string each; std::getline(in, each, ',');) {
    if (each == name) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> own_addresses(const std::string& interfaces) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<std::string> addresses, loopback;
  for (const auto* each = list; each != nullptr; each = each->ifa_next) {
    const int family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || (each->ifa_flags & IFF_UP) == 0) continue;
    if (!interfaces.empty() && !is_listed(interfaces, each->ifa_name)) continue;
    const auto length = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const auto text = SocketName::numeric(each->ifa_addr, length);
    if (text.empty() || text.find('%') != std::string::npos) continue;  // a link-local address
    ((each->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).push_back(text);
  }
  return addresses.empty() ? loopback : addresses;
}

std::string own_address_of(int socket) {
  const auto name = SocketName::of(socket);
  return name ? name->address() : "";
}

UniqueFd listen_at(Endpoint& endpoint) {
  const auto name = SocketName::of(endpoint);
  if (!name) return {};
  auto fd = new_socket(name->family());
  if (!fd || bind(fd.get(), name->get(), name->length()) != 0 || listen(fd.get(), SOMAXCONN) != 0) return {};
  const auto bound = SocketName::of(fd.get());
  if (!bound) return {};
  endpoint.port = bound->port();
  return fd;
}

UniqueFd reserve_port(int& port) {
  // A socket of IPv6 also reserves the port of IPv4.
  for (const auto* any : {"::", "0.0.0.0"}) {
    const auto name = SocketName::of(Endpoint{any});
    if (!name) continue;
    auto fd = new_socket(name->family());
    const int off = 0;
    if (fd && name->family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!fd || bind(fd.get(), name->get(), name->length()) != 0) continue;
    const auto bound = SocketName::of(fd.get());
    if (!bound) continue;
    port = bound->port();
    return fd;
  }
  return {};
}

Connecting begin_connecting(const Endpoint& endpoint) {
  const auto name = SocketName::of(endpoint);
  if (!name) return {.socket = {}, .error = EINVAL};
  auto fd = new_socket(name->family());
  if (!fd || (connect(fd.get(), name->get(), name->length()) != 0 && errno != EINPROGRESS)) {
    return {.socket = {}, .error = errno};
  }
  return {.socket = std::move(fd)};
}

int connecting_error(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

}  // namespace perseus
