// Lays out the memory that a member of a group shares: its flag, its descriptors and its staging memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/shm/flag.h"
#include "transport/shm/memory/external_segments.h"

namespace perseus::shm {

// A run of a member's buffer in its own segments.
struct BufferRun {
  Place in;
  Place out;
  std::uint64_t bytes = 0;
};

// Describes a member's memory for one operation, if the others can reach it.
struct alignas(64) BufferDescriptor {
  static constexpr std::size_t kRuns = 1024;

  std::uint32_t reachable = 0;
  std::uint32_t runs = 0;
  std::uint64_t number = 0;   // for use by the operation
  std::uint64_t changes = 0;  // of the member's external segments
  BufferRun run[kRuns];
};

// The part of a member that lies in its own segment. The owner writes it and the others read it, except for `left`.
struct MemberHeader {
  Flag flag;
  alignas(64) std::atomic<std::uint32_t> broken{0};  // the owner has failed
  alignas(64) std::atomic<std::uint32_t> left{0};    // number of members, with the owner, that will not read this again
  // The descriptors alternate between operations, because a slow reader may still read the previous one.
  BufferDescriptor descriptors[2];
};

// Returns the smallest chunk, which has room for some cache lines of each member.
inline std::size_t least_chunk_bytes(std::size_t members) {
  return std::bit_ceil(std::max<std::size_t>(16 * 1024, 1024 * members));
}

// Sizes and places of the staging memory behind a header; the same on all members.
//
// Memory is written in a ring, although two alternating places would suffice. A cache line that a peer has just read is
// slow to write again; after some rounds the line has left the peer's first-level cache.
struct Staging {
  static constexpr std::uint32_t kSmalls = 32;
  static constexpr std::uint32_t kResults =
      2;  // one is read while another is written; see ShmTransport::reduce_in_slices

  std::size_t small_bytes = 0;        // largest operation done in one step
  std::size_t chunk_bytes = 0;        // largest chunk of the pipelines, a power of two
  std::size_t usual_chunk_bytes = 0;  // until ShmTransport::set_chunk_bytes, a power of two

  std::size_t ring_bytes() const { return 2 * chunk_bytes; }  // two chunks at least: see ShmTransport::pipeline
  std::size_t small(std::uint32_t number) const { return kHeader + number % kSmalls * small_bytes; }
  std::size_t ring_offset() const { return kHeader + kSmalls * small_bytes; }
  std::size_t result(std::uint32_t number) const {
    return ring_offset() + ring_bytes() + number % kResults * chunk_bytes;
  }
  std::size_t total() const { return ring_offset() + ring_bytes() + kResults * chunk_bytes; }

  static constexpr std::size_t kHeader = (sizeof(MemberHeader) + 4095) / 4096 * 4096;
};

}  // namespace perseus::shm
