#include "base/sha256.h"

#include <bit>
#include <string>

namespace perseus {
namespace {

constexpr std::size_t kBlockBytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr State kInitialState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t byte_at(std::string_view bytes, std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); }

std::array<std::uint32_t, 64> schedule_of(std::string_view block) {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t t = 0; t < 16; ++t) {
    for (std::size_t i = 0; i < 4; ++i) words[t] = words[t] << 8 | byte_at(block, 4 * t + i);
  }
  for (std::size_t t = 16; t < 64; ++t) {
    const auto before = words[t - 15], after = words[t - 2];
    const auto small0 = std::rotr(before, 7) ^ std::rotr(before, 18) ^ before >> 3;
    const auto small1 = std::rotr(after, 17) ^ std::rotr(after, 19) ^ after >> 10;
    words[t] = small1 + words[t - 7] + small0 + words[t - 16];
  }
  return words;
}

// The variable names are those of the standard.
void add_block(State& state, std::string_view block) {
  const auto words = schedule_of(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t t = 0; t < 64; ++t) {
    const auto big1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const auto t1 = h + big1 + ((e & f) ^ (~e & g)) + kRoundConstants[t] + words[t];
    const auto big0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const auto t2 = big0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

std::string_view as_text(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

Sha256Digest sha256(std::string_view bytes) {
  std::string padded(bytes);
  padded += '\x80';
  padded.resize((padded.size() + 8 + kBlockBytes - 1) / kBlockBytes * kBlockBytes - 8, '\0');
  const std::uint64_t bits = std::uint64_t{8} * bytes.size();
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift & 0xff);
  State state = kInitialState;
  for (std::size_t i = 0; i < padded.size(); i += kBlockBytes) {
    add_block(state, std::string_view(padded).substr(i, kBlockBytes));
  }
  Sha256Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Sha256Digest hmac_sha256(std::string_view key, std::string_view bytes) {
  std::string padded(key.size() > kBlockBytes ? as_text(sha256(key)) : key);
  padded.resize(kBlockBytes, '\0');
  std::string inner = padded, outer = padded;
  for (auto& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (auto& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  const auto inner_digest = sha256(inner.append(bytes));
  return sha256(outer.append(as_text(inner_digest)));
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace perseus
