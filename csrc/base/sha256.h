// Implements SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) for the few bytes of a handshake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace perseus {

constexpr std::size_t kSha256Bytes = 32;
using Sha256Digest = std::array<std::uint8_t, kSha256Bytes>;

Sha256Digest sha256(std::string_view bytes);
Sha256Digest hmac_sha256(std::string_view key, std::string_view bytes);

// Returns true if both are equal. The time taken does not depend on where they differ.
bool equal_in_constant_time(std::string_view one, std::string_view other);

}  // namespace perseus
