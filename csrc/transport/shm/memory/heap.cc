#include "transport/shm/memory/heap.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace perseus::shm {

namespace {

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Heap::Heap(std::size_t bytes) { insert_free(0, bytes / kPage * kPage); }

std::optional<Heap::Range> Heap::allocate(std::size_t bytes) {
  if (bytes > SIZE_MAX / 2) return std::nullopt;
  const bool large = bytes >= kLarge;
  const auto unit = large ? kPage : kAlignment;
  const auto wanted = std::max(round_up(bytes, unit), unit);
  // Try the free ranges that are large enough from the smallest on; alignment may make one too short.
  for (auto at = free_by_size_.lower_bound({wanted, 0}); at != free_by_size_.end(); ++at) {
    const auto [size, offset] = *at;
    const auto start = round_up(offset, unit);
    if (start + wanted > offset + size) continue;
    erase_free(free_.find(offset));
    if (start > offset) insert_free(offset, start - offset);
    if (start + wanted < offset + size) insert_free(start + wanted, offset + size - start - wanted);
    given_.emplace(start, wanted);
    used_ += wanted;
    return Range{start, wanted};
  }
  return std::nullopt;
}

std::optional<Heap::Range> Heap::release(std::size_t offset) {
  const auto found = given_.find(offset);
  if (found == given_.end()) return std::nullopt;
  const Range range{offset, found->second};
  given_.erase(found);
  used_ -= range.bytes;

  auto start = range.offset;
  auto end = range.offset + range.bytes;
  if (const auto next = free_.find(end); next != free_.end()) {
    end += next->second;
    erase_free(next);
  }
  if (const auto next = free_.upper_bound(start); next != free_.begin()) {
    if (const auto before = std::prev(next); before->first + before->second == start) {
      start = before->first;
      erase_free(before);
    }
  }
  insert_free(start, end - start);
  return range;
}

void Heap::insert_free(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Heap::erase_free(std::map<std::size_t, std::size_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

}  // namespace perseus::shm
