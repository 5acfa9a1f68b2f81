#include "bootstrap/authentication.h"

#include "base/random.h"
#include "base/sha256.h"

namespace perseus {
namespace {

constexpr std::size_t kNonceBytes = 32;

}  // namespace

Handshake::Handshake(std::string_view secret, End end)
    : secret_(secret),
      end_(end),
      nonce_(random_bytes(kNonceBytes)),
      missing_(end == End::listening ? kNonceBytes + kSha256Bytes : kNonceBytes) {}

std::optional<std::string> Handshake::take(std::string_view bytes) {
  received_ += bytes;
  missing_ -= bytes.size();
  if (missing_ > 0) return std::string();
  return end_ == End::listening ? take_answer() : take_as_connecting();
}

std::optional<std::string> Handshake::take_answer() {
  others_nonce_ = received_.substr(0, kNonceBytes);
  if (!equal_in_constant_time(received_.substr(kNonceBytes), digest(End::connecting))) return {};
  return digest(End::listening);
}

std::optional<std::string> Handshake::take_as_connecting() {
  if (others_nonce_.empty()) {
    others_nonce_ = std::move(received_);
    received_.clear();
    missing_ = kSha256Bytes;
    return nonce_ + digest(End::connecting);
  }
  if (!equal_in_constant_time(received_, digest(End::listening))) return {};
  return std::string();
}

std::string Handshake::digest(End end) const {
  const bool is_listening = end_ == End::listening;
  const auto& listeners = is_listening ? nonce_ : others_nonce_;
  const auto& connecting = is_listening ? others_nonce_ : nonce_;
  const auto label = std::string(end == End::listening ? "listening" : "connecting");
  const auto bytes = hmac_sha256(secret_, label + listeners + connecting);
  return {bytes.begin(), bytes.end()};
}

IoResult authenticate(int socket, std::string_view secret, Deadline deadline) {
  Handshake handshake(secret, Handshake::End::connecting);
  while (handshake.missing() > 0) {
    std::string bytes(handshake.missing(), '\0');
    if (const auto result = receive_all(socket, bytes.data(), bytes.size(), deadline); result != IoResult::ok)
      return result;
    const auto answer = handshake.take(bytes);
    if (!answer) return IoResult::closed;
    if (const auto result = send_all(socket, answer->data(), answer->size(), deadline); result != IoResult::ok)
      return result;
  }
  return IoResult::ok;
}

}  // namespace perseus
