// The fuzzer's end of a connection, with or without a handshake that knows the secret.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "bootstrap/authentication.h"
#include "bootstrap/local/local_socket.h"
#include "fuzz_input.h"

namespace perseus {

inline constexpr std::chrono::milliseconds kFuzzPatience{20};

inline Deadline fuzz_deadline() { return std::chrono::steady_clock::now() + kFuzzPatience; }

// Runs the handshake as the listening end.
inline bool admit(int socket, std::string_view secret) {
  Handshake handshake(secret, Handshake::End::listening);
  const auto opening = handshake.opening();
  if (send_all(socket, opening.data(), opening.size(), fuzz_deadline()) != IoResult::ok) return false;
  while (handshake.missing() > 0) {
    std::string bytes(handshake.missing(), '\0');
    if (receive_all(socket, bytes.data(), bytes.size(), fuzz_deadline()) != IoResult::ok) return false;
    const auto answer = handshake.take(bytes);
    if (!answer || send_all(socket, answer->data(), answer->size(), fuzz_deadline()) != IoResult::ok) return false;
  }
  return true;
}

// Acts as one peer on a connected socket until the input ends or the other end closes. The first byte of the input
// decides whether this peer runs the handshake.
inline void play(int socket, Handshake::End end, std::string_view secret, FuzzInput& input) {
  if (input.below(4) != 0) {
    const bool known = end == Handshake::End::listening ? admit(socket, secret)
                                                        : authenticate(socket, secret, fuzz_deadline()) == IoResult::ok;
    if (!known) return;
  }
  const auto bytes = input.rest();
  static_cast<void>(send_all(socket, bytes.data(), bytes.size(), fuzz_deadline()));
  shutdown(socket, SHUT_WR);
}

}  // namespace perseus
