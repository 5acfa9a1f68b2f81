// Listening sockets that strangers cannot exhaust, and the connections whose handshake is not finished.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/authentication.h"
#include "bootstrap/local_socket.h"

namespace perseus {

// A connection that finished its handshake, and the bytes that it then sent first.
struct Admitted {
  UniqueFd socket;
  std::string greeting;
};

// - A connection whose handshake or greeting is not finished within 10 seconds is closed.
// - At most 64 + 4 * `expected` connections wait for theirs; a new one displaces the oldest.
// - When the process is out of descriptors, a new connection displaces the oldest, or waits; nothing spins.
// - Connections of other users to a Unix socket are closed at once.
class AuthenticatedListener {
 public:
  // `greeting_bytes`: what each connecting end sends after the handshake.
  AuthenticatedListener(std::vector<UniqueFd> listeners, std::string secret, std::size_t expected,
                        std::size_t greeting_bytes, std::chrono::milliseconds patience = std::chrono::seconds(10));

  // Blocks until a connection is admitted. Empty at `deadline`, however many strangers knock, or once the descriptor
  // `called_off` (-1: none) is readable.
  std::optional<Admitted> next(Deadline deadline, int called_off = -1);

 private:
  struct Waiting {
    UniqueFd socket;
    Handshake handshake;
    std::string greeting;
    Deadline deadline;
  };
  enum class Progress { waits, failed, admitted };

  // Serves what is ready until `until`; false once called off.
  bool serve(Deadline until, int called_off);
  void accept_from(int listener);
  void begin(UniqueFd socket);
  Progress go_on(Waiting& waiting) const;
  void drop_late();
  Deadline wake_up(Deadline until) const;

  std::vector<UniqueFd> listeners_;
  std::string secret_;
  std::size_t limit_;
  std::size_t greeting_bytes_;
  std::chrono::milliseconds patience_;
  std::deque<Waiting> waiting_;  // the oldest first
  std::deque<Admitted> admitted_;
  Deadline paused_until_{};  // listeners are not polled before
};

}  // namespace perseus
