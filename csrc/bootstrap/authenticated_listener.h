// Accepts authenticated connections on listening sockets that other programs cannot exhaust.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/authentication.h"
#include "bootstrap/local/local_socket.h"

namespace perseus {

// A connection after its handshake, and the first bytes that it sent after it.
struct Admitted {
  UniqueFd socket;
  std::string greeting;
};

// - A connection whose handshake or greeting is not finished within 10 seconds is closed.
// - At most 64 + 4 * `expected` connections wait for theirs; a new one displaces the oldest.
// - When the process is out of descriptors, a new connection waits on a Unix socket, where only processes of this user
//   are accepted. Elsewhere it displaces the oldest, or waits. Nothing spins.
// - Connections of other users to a Unix socket are closed at once.
// The listening sockets and the connections whose handshake is not finished.
class AuthenticatedListener {
 public:
  // Each connecting end sends `greeting_bytes` bytes after the handshake.
  AuthenticatedListener(std::vector<UniqueFd> listeners, std::string secret, std::size_t expected,
                        std::size_t greeting_bytes, std::chrono::milliseconds patience = std::chrono::seconds(10));

  // Blocks until a connection is admitted. Returns nothing at `deadline`, however many unauthenticated connections
  // arrive, or once the descriptor `cancel_fd` (−1: none) is readable.
  std::optional<Admitted> next(Deadline deadline, int cancel_fd = -1);

 private:
  struct Waiting {
    UniqueFd socket;
    Handshake handshake;
    std::string greeting;
    Deadline deadline;
  };
  enum class Progress { waits, failed, admitted };

  // Serves the ready sockets until `until`. Returns false once `cancel_fd` is readable.
  bool serve(Deadline until, int cancel_fd);
  void accept_from(int listener);
  void begin(UniqueFd socket);
  Progress advance(Waiting& waiting) const;
  void close_late();
  Deadline wake_up(Deadline until) const;

  std::vector<UniqueFd> listeners_;
  std::string secret_;
  std::size_t limit_;
  std::size_t greeting_bytes_;
  std::chrono::milliseconds handshake_limit_;
  std::deque<Waiting> waiting_;  // from the oldest to the newest
  std::deque<Admitted> admitted_;
  Deadline paused_until_{};  // listeners are not polled before this time
};

}  // namespace perseus
