// Wraps file descriptors and Unix sockets, and sends and receives bytes with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace perseus {

// Owns a file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  void reset(int fd = -1);
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Raises this process's limit of open descriptors, as far as it may, if fewer than `count` more would fit.
void make_room_for_descriptors(std::size_t count);

// Returns a text if this process cannot open `count` further descriptors, even if the soft limit is raised.
std::string lack_of_descriptors(std::size_t count);

using Deadline = std::chrono::steady_clock::time_point;

// The result of a transfer over a socket.
enum class IoResult { ok, closed, late };

// Names are abstract: they have no file and are private to the network namespace. All sockets are close-on-exec and
// non-blocking.
UniqueFd listen_on(const std::string& name);   // throws Error
UniqueFd connect_to(const std::string& name);  // returns nothing if no process listens there; throws Error
UniqueFd accept_from(int listener);            // returns nothing if no connection waits

// Returns true if the process at the other end belongs to this process's user.
bool is_same_user(int socket);

// Blocks until `fd` is readable. Returns false at the deadline, or once the descriptor `cancel_fd` (−1: none) is
// readable.
bool wait_readable(int fd, Deadline deadline, int cancel_fd = -1);

IoResult send_all(int socket, const void* bytes, std::size_t count, Deadline deadline);
IoResult receive_all(int socket, void* bytes, std::size_t count, Deadline deadline);

// A frame consists of its length and its bytes.
IoResult send_frame(int socket, std::string_view bytes, Deadline deadline);
IoResult receive_frame(int socket, std::string& bytes, Deadline deadline);

// A file descriptor is sent with one byte. Throws Error(unavailable) if the limit of descriptors does not allow it.
IoResult send_fd(int socket, int fd, Deadline deadline);
IoResult receive_fd(int socket, UniqueFd& fd, Deadline deadline);

// A pair of connected sockets for datagrams, of which any number of processes may send through the second.
struct DatagramPair {
  UniqueFd receiver, sender;
};
DatagramPair new_datagram_pair();  // throws Error

// Sends a datagram, with a file descriptor unless `fd` is −1. Does not block; returns `late` if the receiver's queue is
// full, and `closed` if the datagram cannot be sent at all.
IoResult send_datagram(int socket, const void* bytes, std::size_t count, int fd);
// Receives a datagram of `count` bytes, and its descriptor if it has one. Returns false if none has arrived. Throws
// Error(transport) for a datagram of another size.
bool receive_datagram(int socket, void* bytes, std::size_t count, UniqueFd& fd);

}  // namespace perseus
