#include "bootstrap/authenticated_listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace perseus {
namespace {

using Clock = std::chrono::steady_clock;

// The most connections that wait for their handshake, in addition to the expected ones.
constexpr std::size_t kSpareConnections = 64;
// The most connections to accept from one listener before other sockets are served.
constexpr int kBatch = 64;
constexpr std::chrono::milliseconds kRest{200};

bool is_out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// A message of the handshake always fits into the buffer of a connection that was just accepted.
bool send_whole(int socket, std::string_view bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

int domain_of(int socket) {
  int domain = AF_UNSPEC;
  socklen_t length = sizeof domain;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 ? domain : AF_UNSPEC;
}

bool is_of_another_user(int socket) {
  const int domain = domain_of(socket);
  return domain == AF_UNSPEC || (domain == AF_UNIX && !is_same_user(socket));
}

}  // namespace

AuthenticatedListener::AuthenticatedListener(std::vector<UniqueFd> listeners, std::string secret, std::size_t expected,
                                             std::size_t greeting_bytes, std::chrono::milliseconds patience)
    : listeners_(std::move(listeners)),
      secret_(std::move(secret)),
      limit_(kSpareConnections + 4 * expected),
      greeting_bytes_(greeting_bytes),
      handshake_limit_(patience) {
  make_room_for_descriptors(limit_);
}

std::optional<Admitted> AuthenticatedListener::next(Deadline deadline, int cancel_fd) {
  while (admitted_.empty()) {
    if (Clock::now() >= deadline || !serve(deadline, cancel_fd)) return {};
  }
  auto first = std::move(admitted_.front());
  admitted_.pop_front();
  return first;
}

bool AuthenticatedListener::serve(Deadline until, int cancel_fd) {
  close_late();
  std::vector<pollfd> entries{{cancel_fd, POLLIN, 0}};  // poll() ignores −1
  for (const auto& each : waiting_) entries.push_back({each.socket.get(), POLLIN, 0});
  const bool is_paused = Clock::now() < paused_until_;
  for (const auto& each : listeners_) entries.push_back({is_paused ? -1 : each.get(), POLLIN, 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake_up(until) - Clock::now());
  const auto limit = std::clamp<std::int64_t>(left.count(), 0, 1 << 30);
  if (poll(entries.data(), entries.size(), static_cast<int>(limit)) <= 0) return true;
  if (entries[0].revents != 0) return false;
  const auto first_listener = entries.size() - listeners_.size();
  for (std::size_t i = first_listener; i-- > 1;) {
    if (entries[i].revents == 0) continue;
    const auto place = waiting_.begin() + static_cast<std::ptrdiff_t>(i - 1);
    const auto progress = advance(*place);
    if (progress == Progress::admitted) admitted_.push_back({std::move(place->socket), std::move(place->greeting)});
    if (progress != Progress::waits) waiting_.erase(place);
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (entries[first_listener + i].revents != 0) accept_from(listeners_[i].get());
  }
  return true;
}

void AuthenticatedListener::accept_from(int listener) {
  for (int i = 0; i < kBatch; ++i) {
    if (auto socket = perseus::accept_from(listener)) {
      begin(std::move(socket));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (is_out_of_descriptors(errno)) {
      if (waiting_.empty() || domain_of(listener) == AF_UNIX) {
        paused_until_ = Clock::now() + kRest;
        return;
      }
      waiting_.pop_front();
    }
    // Otherwise the connection has ended in the queue.
  }
}

void AuthenticatedListener::begin(UniqueFd socket) {
  if (is_of_another_user(socket.get())) return;
  if (waiting_.size() == limit_) waiting_.pop_front();
  Handshake handshake(secret_, Handshake::End::listening);
  if (!send_whole(socket.get(), handshake.opening())) return;
  waiting_.push_back({std::move(socket), std::move(handshake), {}, Clock::now() + handshake_limit_});
}

AuthenticatedListener::Progress AuthenticatedListener::advance(Waiting& waiting) const {
  const int socket = waiting.socket.get();
  const auto missing = waiting.handshake.missing();
  std::string bytes(missing > 0 ? missing : greeting_bytes_ - waiting.greeting.size(), '\0');
  const auto got = recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::waits;
  if (got <= 0) return Progress::failed;
  bytes.resize(static_cast<std::size_t>(got));
  if (missing > 0) {
    const auto answer = waiting.handshake.take(bytes);
    if (!answer || (!answer->empty() && !send_whole(socket, *answer))) return Progress::failed;
  } else {
    waiting.greeting += bytes;
  }
  const bool is_done = waiting.handshake.missing() == 0 && waiting.greeting.size() == greeting_bytes_;
  return is_done ? Progress::admitted : Progress::waits;
}

void AuthenticatedListener::close_late() {
  const auto now = Clock::now();
  while (!waiting_.empty() && waiting_.front().deadline <= now) waiting_.pop_front();
}

Deadline AuthenticatedListener::wake_up(Deadline until) const {
  if (!waiting_.empty()) until = std::min(until, waiting_.front().deadline);
  return paused_until_ > Clock::now() ? std::min(until, paused_until_) : until;
}

}  // namespace perseus
