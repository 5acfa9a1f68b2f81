// Allocates ranges of an address space by best fit, and joins adjacent free ranges.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace perseus::shm {

// A heap of offsets. Its records are in private memory, which peers cannot change. Not thread-safe.
class Heap {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kLarge = 64 * 1024;  // ranges of this size and larger are page-aligned

  struct Range {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  explicit Heap(std::size_t bytes);

  // Allocates a range of `bytes` rounded up. Returns nothing if there is no room.
  std::optional<Range> allocate(std::size_t bytes);
  // Frees and returns the range allocated at `offset`, or returns nothing if there is none.
  std::optional<Range> release(std::size_t offset);

  std::size_t used() const { return used_; }
  // offset → bytes
  const std::map<std::size_t, std::size_t>& free_ranges() const { return free_; }
  const std::map<std::size_t, std::size_t>& given_ranges() const { return given_; }

 private:
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::map<std::size_t, std::size_t>::iterator range);

  std::map<std::size_t, std::size_t> free_;                     // offset → bytes; never adjacent
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // the same ranges as (bytes, offset)
  std::map<std::size_t, std::size_t> given_;                    // offset → bytes
  std::size_t used_ = 0;
};

}  // namespace perseus::shm
