// What one member of a group shows to the others: its flag, its offers and its staging memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/shm/flag.h"

namespace perseus::shm {

// A run of a member's buffer in its own segment.
struct OfferedRun {
  std::uint64_t in = 0;  // offsets
  std::uint64_t out = 0;
  std::uint64_t bytes = 0;
};

// Said before an operation: where the member's memory is, if the others can reach it.
struct alignas(64) Offer {
  static constexpr std::size_t kRuns = 1024;

  std::uint32_t reachable = 0;
  std::uint32_t runs = 0;
  std::uint64_t number = 0;  // an operation's own use
  OfferedRun run[kRuns];
};

// Lies in its owner's segment. The owner writes; the others read, except for `left`.
struct Seat {
  Flag flag;
  alignas(64) std::atomic<std::uint32_t> broken{0};  // the owner has given up
  alignas(64) std::atomic<std::uint32_t> left{0};    // members, the owner included, that will not look here again
  // Alternate between operations: a slow reader may still be at the last one.
  Offer offers[2];
};

// A chunk has a place of some lines for each member.
inline std::size_t least_chunk_bytes(std::size_t members) {
  return std::bit_ceil(std::max<std::size_t>(16 * 1024, 1024 * members));
}

// Sizes and places of the staging memory behind a seat; the same on all members.
//
// Memory is written in a ring, although two places in turn would do: a line that a peer has just read is slow to write
// again, and after some rounds it has left the peer's first cache.
struct Staging {
  static constexpr std::uint32_t kSmalls = 32;
  static constexpr std::uint32_t kResults = 2;  // one is read while the other is written: see Group::reduce_in_slices

  std::size_t small_bytes = 0;        // largest operation done in one step
  std::size_t chunk_bytes = 0;        // largest chunk of the pipelines, a power of two
  std::size_t usual_chunk_bytes = 0;  // until Group::set_chunk_bytes, a power of two

  std::size_t ring_bytes() const { return 2 * chunk_bytes; }  // two chunks at least: see Group::pipeline
  std::size_t small(std::uint32_t number) const { return kHeader + number % kSmalls * small_bytes; }
  std::size_t ring() const { return kHeader + kSmalls * small_bytes; }
  std::size_t result(std::uint32_t number) const { return ring() + ring_bytes() + number % kResults * chunk_bytes; }
  std::size_t total() const { return ring() + ring_bytes() + kResults * chunk_bytes; }

  static constexpr std::size_t kHeader = (sizeof(Seat) + 4095) / 4096 * 4096;
};

}  // namespace perseus::shm
