// The beginning of each message of PointToPoint.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace perseus {

enum class PointToPointKind : std::uint8_t { announcement, part, taken, leaving, refusal };

struct PointToPointHead {
  char mark;
  PointToPointKind kind;
  std::uint8_t dtype = 0;
  std::uint8_t placed = 0;  // 1: the part lies at `place`; a peer may send any value
  std::uint32_t unused = 0;
  std::int64_t tag = 0;
  std::int64_t count = 0;
  std::uint64_t id = 0;
  std::uint64_t place = 0;
  std::array<char, 24> own_dtype{};  // shortened to this, and without a zero at the end if it is as long
};

inline std::string bytes_of(const PointToPointHead& head, const void* data, std::size_t count) {
  std::string bytes(sizeof head + count, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  if (count > 0) std::memcpy(bytes.data() + sizeof head, data, count);
  return bytes;
}

}  // namespace perseus
