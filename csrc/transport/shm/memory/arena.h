// Allocates memory that every rank of a host can reach.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/memory/memory_limits.h"
#include "bootstrap/local/local_rendezvous.h"
#include "transport/shm/memory/heap.h"
#include "transport/shm/memory/segment.h"

namespace perseus::shm {

// The segments by local rank. In tests, threads that are ranks of one process share them.
using Segments = std::vector<std::shared_ptr<Segment>>;

// Makes this rank's segment and maps all others. Collective over the rendezvous. `wanted` is the size in bytes; 0 means
// a size computed from the machine's memory. If address space or memory is short, all ranks agree on less, and `note`
// says so. Throws Error(unavailable).
Segments share_segments(LocalRendezvous& rendezvous, std::size_t wanted, std::string& note);

// The shared memory of one rank and the mapped segments of its peers on the host. Thread-safe.
//
// Released memory keeps its pages at first, because the kernel takes longer to supply new pages than a copy takes. A
// thread returns the pages that a few seconds have passed without a need for.
class Arena {
 public:
  Arena(Segments segments, int local_rank);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(segments_.size()); }

  // Allocates 64-byte aligned memory, page-aligned from 64 KiB on. Returns nullptr if address space or memory has run
  // out.
  void* allocate(std::size_t bytes);
  void release(void* memory);

  // Never allocates memory again that is allocated now, even if it is released: after a failure a slow peer may still
  // write to it.
  void keep_given_memory();

  // Returns the offset of [data, data + bytes) if the range lies in this rank's segment.
  std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const;
  // Returns the address of a range of a peer's segment, or nullptr if the range is not inside it.
  std::byte* at(int local_rank, std::uint64_t offset, std::uint64_t bytes) const;

  // Call in a forked child, in which the thread does not exist: its later writes to this rank's memory go to a copy.
  // See Segment::make_private().
  void make_private();

 private:
  bool commit(Heap::Range range);
  void decommit_free(std::size_t keep);
  bool has_excess() const;
  void start_trimming();
  void trim();

  Segments segments_;
  int local_rank_;
  Segment& mine_;
  std::mutex mutex_;  // guards the rest
  Heap heap_;
  std::unordered_set<std::size_t> kept_;  // offsets of ranges that are never allocated again
  std::vector<bool> committed_;           // by granule: pages are allocated
  std::size_t committed_bytes_ = 0;
  std::size_t peak_ = 0;  // the most bytes in use since the thread looked last
  MemoryLimits limits_;
  bool is_trimming_ = false;  // the thread looks at the memory from time to time
  bool stopping_ = false;
  std::condition_variable changed_;
  std::thread trimmer_;  // started when there is something to trim for the first time
};

}  // namespace perseus::shm
