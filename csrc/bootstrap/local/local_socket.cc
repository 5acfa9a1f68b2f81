#include "bootstrap/local/local_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace perseus {

namespace {

// Far more than any rank sends at the start; a greater length is malformed.
constexpr std::uint64_t kLongestFrame = std::uint64_t{1} << 30;

Error failed(const std::string& what, int error) {
  return {ErrorKind::transport, what + ": " + system_error_text(error)};
}

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address abstract(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.name.sun_path) {
    throw Error(ErrorKind::invalid_argument, "the rendezvous name '" + name + "' is too long for a Unix socket");
  }
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());  // a leading zero byte means an abstract name
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

std::string no_descriptors_text(const std::string& what, int error) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return what + ": " + system_error_text(error) + "; the limit is " + std::to_string(limit.rlim_cur) +
         " descriptors: raise it (ulimit -n)";
}

Error no_descriptors(const std::string& what, int error) {
  return {ErrorKind::unavailable, no_descriptors_text(what, error)};
}

UniqueFd new_socket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw failed("cannot make a Unix socket", errno);
  return fd;
}

bool wait_for(int fd, short events, Deadline deadline, int cancel_fd = -1) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    std::array<pollfd, 2> entries{{{fd, events, 0}, {cancel_fd, POLLIN, 0}}};  // poll() ignores −1
    const auto limit = std::clamp<std::int64_t>(left.count(), 0, 1 << 30);
    const int ready = poll(entries.data(), entries.size(), static_cast<int>(limit));
    if (ready > 0) return entries[1].revents == 0;
    if (ready == 0 && left.count() <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Repeats `step`, which returns the bytes moved, 0 if closed, or −1 with errno, until `count` bytes have moved.
template <class Step>
IoResult move_all(int socket, std::size_t count, short events, Deadline deadline, Step step) {
  std::size_t done = 0;
  while (done < count) {
    const auto moved = step(done);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
    } else if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(socket, events, deadline)) return IoResult::late;
    } else if (moved == 0 || errno != EINTR) {
      return IoResult::closed;
    }
  }
  return IoResult::ok;
}

// The header of a message of some bytes and at most one file descriptor.
class MessageWithFd {
 public:
  MessageWithFd(void* bytes, std::size_t count) : part_{bytes, count} {
    header_.msg_iov = &part_;
    header_.msg_iovlen = 1;
  }
  MessageWithFd(const MessageWithFd&) = delete;
  MessageWithFd& operator=(const MessageWithFd&) = delete;

  msghdr* header() { return &header_; }

  void attach(int fd) {
    auto* const control = CMSG_FIRSTHDR(with_room_for_fd());
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  }
  msghdr* with_room_for_fd() {
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
    return &header_;
  }
  // Returns true if a descriptor has arrived that this process may not have.
  bool is_cut() const { return (header_.msg_flags & MSG_CTRUNC) != 0; }
  // Returns the descriptor that has arrived, or none.
  UniqueFd take_fd() const {
    const auto* found = CMSG_FIRSTHDR(&header_);
    if (found == nullptr || found->cmsg_type != SCM_RIGHTS || found->cmsg_len != CMSG_LEN(sizeof(int))) return {};
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(found), sizeof fd);
    return UniqueFd(fd);
  }

 private:
  iovec part_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr header_{};
};

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

UniqueFd listen_on(const std::string& name) {
  auto fd = new_socket();
  const auto address = abstract(name);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    throw failed("cannot listen on the Unix socket '@" + name + "'", errno);
  }
  return fd;
}

UniqueFd connect_to(const std::string& name) {
  auto fd = new_socket();
  const auto address = abstract(name);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0) return fd;
  // EAGAIN means that the listener's queue is full at the moment.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  throw failed("cannot connect to the Unix socket '@" + name + "'", errno);
}

UniqueFd accept_from(int listener) {
  return UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

bool wait_readable(int fd, Deadline deadline, int cancel_fd) { return wait_for(fd, POLLIN, deadline, cancel_fd); }

IoResult send_all(int socket, const void* bytes, std::size_t count, Deadline deadline) {
  return move_all(socket, count, POLLOUT, deadline, [&](std::size_t done) {
    return send(socket, static_cast<const char*>(bytes) + done, count - done, MSG_NOSIGNAL);
  });
}

IoResult receive_all(int socket, void* bytes, std::size_t count, Deadline deadline) {
  return move_all(socket, count, POLLIN, deadline,
                  [&](std::size_t done) { return recv(socket, static_cast<char*>(bytes) + done, count - done, 0); });
}

IoResult send_frame(int socket, std::string_view bytes, Deadline deadline) {
  const std::uint64_t length = bytes.size();
  if (const auto result = send_all(socket, &length, sizeof length, deadline); result != IoResult::ok) return result;
  return send_all(socket, bytes.data(), bytes.size(), deadline);
}

IoResult receive_frame(int socket, std::string& bytes, Deadline deadline) {
  std::uint64_t length = 0;
  if (const auto result = receive_all(socket, &length, sizeof length, deadline); result != IoResult::ok) return result;
  if (length > kLongestFrame) return IoResult::closed;
  bytes.resize(length);
  return receive_all(socket, bytes.data(), bytes.size(), deadline);
}

void make_room_for_descriptors(std::size_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const UniqueFd lowest(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));  // about as many are open
  if (lowest && static_cast<std::size_t>(lowest.get()) + count <= limit.rlim_cur) return;
  limit.rlim_cur = limit.rlim_max;
  [[maybe_unused]] const int result = setrlimit(RLIMIT_NOFILE, &limit);  // what lacks descriptors later says so
}

std::string lack_of_descriptors(std::size_t count) {
  make_room_for_descriptors(count);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const UniqueFd lowest(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));  // about as many are open
  if (lowest ? static_cast<std::size_t>(lowest.get()) + count <= limit.rlim_cur : errno != EMFILE) return {};
  return no_descriptors_text("the first rank of this host cannot have a connection to each other rank", EMFILE);
}

IoResult send_fd(int socket, int fd, Deadline deadline) {
  char byte = 0;
  MessageWithFd message(&byte, 1);
  message.attach(fd);
  return move_all(socket, 1, POLLOUT, deadline, [&](std::size_t) {
    for (;;) {
      const auto sent = sendmsg(socket, message.header(), MSG_NOSIGNAL);
      if (sent >= 0 || errno != ETOOMANYREFS) return sent;
      // The kernel limits the descriptors that a user's processes have sent and others have not received yet.
      if (std::chrono::steady_clock::now() >= deadline) {
        throw no_descriptors("a descriptor cannot be sent to another rank of this host", ETOOMANYREFS);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

IoResult receive_fd(int socket, UniqueFd& fd, Deadline deadline) {
  char byte = 0;
  MessageWithFd message(&byte, 1);
  const auto result = move_all(socket, 1, POLLIN, deadline, [&](std::size_t) {
    return recvmsg(socket, message.with_room_for_fd(), MSG_CMSG_CLOEXEC);
  });
  if (result != IoResult::ok) return result;
  fd = message.take_fd();
  if (!fd && message.is_cut()) {
    throw no_descriptors("a descriptor of another rank of this host cannot be received", EMFILE);
  }
  return fd ? IoResult::ok : IoResult::closed;
}

DatagramPair new_datagram_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    throw failed("cannot make a Unix socket", errno);
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

IoResult send_datagram(int socket, const void* bytes, std::size_t count, int fd) {
  MessageWithFd message(const_cast<void*>(bytes), count);  // sendmsg() does not write to it
  if (fd >= 0) message.attach(fd);
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, message.header(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(count)) return IoResult::ok;
  return sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) ? IoResult::late : IoResult::closed;
}

bool receive_datagram(int socket, void* bytes, std::size_t count, UniqueFd& fd) {
  MessageWithFd message(bytes, count);
  ssize_t received = 0;
  do {
    received = recvmsg(socket, message.with_room_for_fd(), MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_TRUNC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return false;
  fd = message.take_fd();
  if (received != static_cast<ssize_t>(count)) {
    throw Error(ErrorKind::transport, "a rank of this host sent " + std::to_string(received) + " bytes instead of " +
                                          std::to_string(count) +
                                          "; check that all ranks run the same version of perseus_like");
  }
  return true;
}

}  // namespace perseus
