// Iterates over scattered pieces as one logical buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/shape.h"
#include "transport/transport.h"

namespace perseus::shm {

inline std::byte* at_element(void* data, std::int64_t element, std::size_t size) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(element) * size;
}

// A cursor over the runs of a logical buffer. It keeps its position, so that going forward costs no search.
class RunCursor {
 public:
  RunCursor(Pieces pieces, std::size_t element_size) : pieces_(pieces), size_(element_size) {}

  // Calls visit(data, first, count) for the contiguous runs of elements [begin, begin + count), in order;
  // `first` counts from begin.
  template <class Visit>
  void each(std::int64_t begin, std::int64_t count, const Visit& visit) {
    seek(begin);
    for (std::int64_t done = 0; done < count;) {
      const auto& piece = pieces_[index_];
      const auto inside = begin + done - start_;
      const auto run = std::min(piece.count - inside, count - done);
      if (run > 0) visit(at_element(piece.data, inside, size_), done, run);
      done += run;
      if (inside + run == piece.count) {
        start_ += piece.count;
        ++index_;
      }
    }
  }

  // Calls visit(data, run) once, for the contiguous elements from `begin` on, at most `count`.
  template <class Visit>
  void first(std::int64_t begin, std::int64_t count, const Visit& visit) {
    seek(begin);
    const auto& piece = pieces_[index_];
    visit(at_element(piece.data, begin - start_, size_), std::min(piece.count - (begin - start_), count));
  }

 private:
  void seek(std::int64_t begin) {
    while (begin < start_) start_ -= pieces_[--index_].count;
    while (index_ < pieces_.size() && begin >= start_ + pieces_[index_].count) start_ += pieces_[index_++].count;
  }

  Pieces pieces_;
  std::size_t size_;
  std::size_t index_ = 0;
  std::int64_t start_ = 0;  // the logical element at which piece index_ begins
};

inline std::int64_t total_of(Pieces pieces) {
  std::int64_t total = 0;
  for (const auto& piece : pieces) total += piece.count;
  return total;
}

}  // namespace perseus::shm
