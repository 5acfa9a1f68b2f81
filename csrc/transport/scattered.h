// Treats scattered pieces as one logical buffer of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory/lent_memory.h"
#include "base/reduce.h"
#include "transport/transport.h"

namespace perseus {

// Returns a buffer of at least `bytes` bytes. The vector keeps its memory between calls.
inline std::byte* resized(LentVector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) buffer.resize(bytes);
  return buffer.data();
}

// A logical buffer of elements in scattered pieces. Any range of it can be packed and unpacked.
class Scattered {
 public:
  Scattered(Pieces pieces, std::size_t element_bytes);

  std::int64_t count() const { return begins_.back(); }

  // Returns the memory of element `at` if all elements lie in one piece, else null.
  std::byte* contiguous(std::int64_t at = 0) const;

  // Returns the end of a chunk that starts at `begin` and has at most `most` elements. The end is the end of a piece,
  // or a multiple of `grain` elements after its start. The next chunk then starts at aligned memory if the piece does.
  std::int64_t chunk_end(std::int64_t begin, std::int64_t most, std::int64_t grain) const;

  // Returns the non-empty pieces of a range.
  std::vector<Piece> cut(std::int64_t begin, std::int64_t count) const;

  // Copies elements [begin, begin + count) to or from consecutive memory of type reduction.wire_dtype.
  void pack(const Reduction& reduction, std::int64_t begin, std::int64_t count, void* to) const;
  void unpack(const Reduction& reduction, std::int64_t begin, std::int64_t count, const void* from) const;

 private:
  template <class Visit>
  void each_run(std::int64_t begin, std::int64_t count, const Visit& visit) const;

  std::vector<Piece> pieces_;  // non-empty
  std::vector<std::int64_t> begins_;
  std::size_t element_bytes_;
};

}  // namespace perseus
