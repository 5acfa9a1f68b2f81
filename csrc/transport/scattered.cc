#include "transport/scattered.h"

#include <algorithm>
#include <iterator>

#include "device/host/kernels.h"

namespace perseus {

Scattered::Scattered(Pieces pieces, std::size_t element_bytes) : begins_{0}, element_bytes_(element_bytes) {
  for (const auto& piece : pieces) {
    if (piece.count == 0) continue;
    pieces_.push_back(piece);
    begins_.push_back(begins_.back() + piece.count);
  }
}

std::byte* Scattered::contiguous(std::int64_t at) const {
  if (pieces_.size() != 1) return nullptr;
  return static_cast<std::byte*>(pieces_.front().data) + static_cast<std::size_t>(at) * element_bytes_;
}

// Calls visit(memory, elements, elements before the run in the range) for each run of the range inside one piece.
template <class Visit>
void Scattered::each_run(std::int64_t begin, std::int64_t count, const Visit& visit) const {
  if (count == 0) return;
  auto index = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
  for (std::int64_t done = 0; done < count; ++index) {
    const auto skip = begin + done - begins_[index];
    const auto run = std::min(count - done, pieces_[index].count - skip);
    visit(static_cast<std::byte*>(pieces_[index].data) + static_cast<std::size_t>(skip) * element_bytes_, run, done);
    done += run;
  }
}

std::int64_t Scattered::chunk_end(std::int64_t begin, std::int64_t most, std::int64_t grain) const {
  const auto end = begin + most;
  if (end >= count()) return count();
  const auto piece = *std::prev(std::upper_bound(begins_.begin(), begins_.end(), end));
  const auto aligned = piece + (end - piece) / grain * grain;
  return aligned > begin ? aligned : end;
}

std::vector<Piece> Scattered::cut(std::int64_t begin, std::int64_t count) const {
  std::vector<Piece> pieces;
  each_run(begin, count, [&](std::byte* at, std::int64_t run, std::int64_t) { pieces.push_back({at, run}); });
  return pieces;
}

void Scattered::pack(const Reduction& reduction, std::int64_t begin, std::int64_t count, void* to) const {
  const auto width = size_of(reduction.wire_dtype);
  each_run(begin, count, [&](const std::byte* from, std::int64_t run, std::int64_t done) {
    auto* place = static_cast<std::byte*>(to) + static_cast<std::size_t>(done) * width;
    host::pack(reduction, from, place, run, host::Store::cached);
  });
}

void Scattered::unpack(const Reduction& reduction, std::int64_t begin, std::int64_t count, const void* from) const {
  const auto width = size_of(reduction.wire_dtype);
  each_run(begin, count, [&](std::byte* to, std::int64_t run, std::int64_t done) {
    const auto* place = static_cast<const std::byte*>(from) + static_cast<std::size_t>(done) * width;
    host::unpack(reduction, place, to, run, host::Store::cached);
  });
}

}  // namespace perseus
