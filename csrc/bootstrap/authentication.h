// Authenticates the connections between processes of a job by challenge and response in both directions. Both ends know
// a secret that they got in another way. Each proves that it knows the secret, and neither sends it:
//
//   listening end                                        connecting end
//   32 random bytes: the listener's nonce          →
//                                                  ←     32 random bytes: the nonce of the connecting end,
//                                                        HMAC-SHA256(secret, "connecting" + both nonces)
//   HMAC-SHA256(secret, "listening" + both nonces) →
//
// The labels prevent that an answer is sent back to the end that made it. Data after the handshake is neither encrypted
// nor protected against changes. perseus_like/protocol/authentication.py implements the same protocol.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/local/local_socket.h"

namespace perseus {

// One end of one handshake, without any input or output. Send opening(), which is empty for the connecting end. Then,
// until missing() is 0, receive at most missing() bytes, pass them to take(), and send what it returns.
class Handshake {
 public:
  enum class End { listening, connecting };

  Handshake(std::string_view secret, End end);

  std::string_view opening() const { return end_ == End::listening ? nonce_ : std::string_view{}; }
  std::size_t missing() const { return missing_; }

  // Returns the bytes to send, which may be none. Returns nothing if the other end does not know the secret.
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

// Runs the handshake as the connecting end of a non-blocking socket. Returns IoResult::closed if the listener has
// rejected this end or does not know the secret.
IoResult authenticate(int socket, std::string_view secret, Deadline deadline);

}  // namespace perseus
