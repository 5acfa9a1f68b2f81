// Hands out ranges of an address space: best fit, neighbours joined when they are given back.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace perseus::shm {

// Knows offsets only; its own records are private memory, out of a peer's reach. Not thread-safe.
class Heap {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kLarge = 64 * 1024;  // from here on page-aligned

  struct Range {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  explicit Heap(std::size_t bytes);

  // The range's bytes are `bytes` rounded up; nothing when there is no room.
  std::optional<Range> allocate(std::size_t bytes);
  // Returns what was given out at `offset`, or nothing if nothing was.
  std::optional<Range> release(std::size_t offset);

  std::size_t used() const { return used_; }
  const std::map<std::size_t, std::size_t>& free_ranges() const { return free_; }  // offset → bytes

 private:
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::map<std::size_t, std::size_t>::iterator range);

  std::map<std::size_t, std::size_t> free_;                     // offset → bytes; no two touch
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // (bytes, offset) of the same
  std::map<std::size_t, std::size_t> given_;                    // offset → bytes
  std::size_t used_ = 0;
};

}  // namespace perseus::shm
