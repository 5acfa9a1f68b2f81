// Challenge and response for the connections between processes of a job, in both directions. Both ends know a secret
// that reached them another way. Each proves that it knows the secret, and neither sends it:
//
//   listening end                                        connecting end
//   32 random bytes: the listener's nonce          →
//                                                  ←     32 random bytes: the nonce of the connecting end,
//                                                        HMAC-SHA256(secret, "connecting" + both nonces)
//   HMAC-SHA256(secret, "listening" + both nonces) →
//
// The labels keep an answer from being sent back to the end that made it. What follows the handshake is neither
// encrypted nor protected against a change on the way. perseus_like/launch/authentication.py speaks the same protocol.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/local_socket.h"

namespace perseus {

// One end of one handshake, without any input or output of its own. Send opening(), which is empty for the connecting
// end. Then, until missing() is 0, receive at most missing() bytes, pass them to take(), and send what it returns.
class Handshake {
 public:
  enum class End { listening, connecting };

  Handshake(std::string_view secret, End end);

  std::string_view opening() const { return end_ == End::listening ? nonce_ : std::string_view{}; }
  std::size_t missing() const { return missing_; }

  // Returns what to send, which may be nothing. Empty optional: the other end does not know the secret.
  std::optional<std::string> take(std::string_view bytes);

 private:
  std::optional<std::string> take_answer();
  std::optional<std::string> take_as_connecting();
  std::string digest(End end) const;

  std::string secret_;
  End end_;
  std::string nonce_;
  std::string others_nonce_;
  std::string received_;
  std::size_t missing_;
};

// Runs the handshake as the connecting end of a non-blocking socket. Wire::closed: the listener has refused this end,
// or does not know the secret.
Wire authenticate(int socket, std::string_view secret, Deadline deadline);

}  // namespace perseus
