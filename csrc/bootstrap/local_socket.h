// Unix sockets between processes of one user: file descriptors that close themselves, and bytes with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace perseus {

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

using Deadline = std::chrono::steady_clock::time_point;

// How an exchange over a socket ended.
enum class Wire { ok, closed, late };

// Abstract names: no file to clean up, private to the network namespace. All sockets are close-on-exec and never block.
UniqueFd listen_on(const std::string& name);   // throws Error
UniqueFd connect_to(const std::string& name);  // empty when nobody listens there; throws Error
UniqueFd accept_from(int listener);            // empty when nobody knocks

// True if the process at the other end belongs to this process's user.
bool is_same_user(int socket);

// False when nothing came before the deadline, or the descriptor `called_off` (-1: none) became readable meanwhile.
bool wait_readable(int fd, Deadline deadline, int called_off = -1);

Wire send_all(int socket, const void* bytes, std::size_t count, Deadline deadline);
Wire receive_all(int socket, void* bytes, std::size_t count, Deadline deadline);

// A frame is its length and its bytes.
Wire send_frame(int socket, std::string_view bytes, Deadline deadline);
Wire receive_frame(int socket, std::string& bytes, Deadline deadline);

// A file descriptor travels with one byte.
Wire send_fd(int socket, int fd, Deadline deadline);
Wire receive_fd(int socket, UniqueFd& fd, Deadline deadline);

}  // namespace perseus
