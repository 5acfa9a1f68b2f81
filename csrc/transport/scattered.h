// Scattered pieces seen as one logical buffer of elements, any range of which can be packed and unpacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/reduce.h"
#include "transport/transport.h"

namespace perseus {

// Memory for what is scattered, kept between calls: it only grows.
inline std::byte* resized(std::vector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) buffer.resize(bytes);
  return buffer.data();
}

class Scattered {
 public:
  Scattered(Pieces pieces, std::size_t element_bytes);

  std::int64_t count() const { return begins_.back(); }

  // The memory of element `at`, when all elements lie in one piece; else null.
  std::byte* contiguous(std::int64_t at = 0) const;

  // The pieces of a range, without empty ones.
  std::vector<Piece> cut(std::int64_t begin, std::int64_t count) const;

  // Elements [begin, begin + count) from or to consecutive memory of type reduction.wire.
  void pack(const Reduction& reduction, std::int64_t begin, std::int64_t count, void* to) const;
  void unpack(const Reduction& reduction, std::int64_t begin, std::int64_t count, const void* from) const;

 private:
  template <class Visit>
  void each_run(std::int64_t begin, std::int64_t count, const Visit& visit) const;

  std::vector<Piece> pieces_;  // without the empty ones
  std::vector<std::int64_t> begins_;
  std::size_t element_bytes_;
};

}  // namespace perseus
