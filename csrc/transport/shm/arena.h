// Memory that every rank of a host can reach: one segment per rank, all of them mapped here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/local_star.h"
#include "transport/shm/heap.h"
#include "transport/shm/segment.h"

namespace perseus::shm {

// By local rank. Threads that play ranks in one process share them.
using Segments = std::vector<std::shared_ptr<Segment>>;

// Makes this rank's segment and maps all others'; collective over the star. `wanted` 0 means by the machine's memory.
// Where address space or memory is short all agree on less, and `note` says so. Throws Error(unavailable).
Segments share_segments(LocalStar& star, std::size_t wanted, std::string& note);

// All calls from any thread.
class Arena {
 public:
  Arena(Segments segments, int local_rank);

  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(segments_.size()); }

  // 64-byte aligned, from 64 KiB on page aligned; nullptr when address space or memory has run out.
  void* allocate(std::size_t bytes);
  void release(void* memory);

  // Where [data, data + bytes) lies in this rank's segment, if it does.
  std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const;
  // The place of a range of a peer's segment, or nullptr when the range is not inside it.
  std::byte* at(int local_rank, std::uint64_t offset, std::uint64_t bytes) const;

  // In a forked child: what it writes to this rank's memory from now on is its own copy, see Segment::make_private().
  void make_private() const { mine_.make_private(); }

 private:
  bool commit(Heap::Range range);
  void decommit_free();

  Segments segments_;
  int local_rank_;
  Segment& mine_;
  std::mutex mutex_;  // guards the rest
  Heap heap_;
  std::vector<bool> committed_;  // by granule: has pages
  std::size_t committed_bytes_ = 0;
};

}  // namespace perseus::shm
