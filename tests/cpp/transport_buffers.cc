#include "transport_buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels_reference.h"

namespace perseus::testing {

namespace {

// TSan needs minutes for the computation of expected values, which uses no shared memory.
#define PERSEUS_NOT_RACE_CHECKED __attribute__((no_sanitize("thread")))

constexpr std::size_t kMargin = 64;
constexpr std::uint8_t kUntouched = 0xa5;

}  // namespace

Buffer::Buffer(Fabric& fabric, Place place, DType dtype, const std::vector<std::int64_t>& counts)
    : fabric_(fabric), dtype_(dtype) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const bool in_arena = place == Place::arena || (place == Place::mixed && i % 2 == 1);
    // An odd start for every third piece, as views have it.
    const auto shift = kMargin + (i % 3 == 2 ? size_of(dtype) : 0);
    const auto bytes = static_cast<std::size_t>(counts[i]) * size_of(dtype);
    const auto all = bytes + shift + kMargin;
    auto* memory = static_cast<std::uint8_t*>(in_arena ? fabric.allocate(all) : std::malloc(all));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, kUntouched, all);
    blocks_.push_back({memory, all, in_arena});
    pieces_.push_back({memory + shift, counts[i]});
  }
}

Buffer::~Buffer() {
  for (const auto& block : blocks_) {
    if (block.in_arena) {
      fabric_.release(block.memory);
    } else {
      std::free(block.memory);
    }
  }
}

std::int64_t Buffer::count() const {
  std::int64_t total = 0;
  for (const auto& piece : pieces_) total += piece.count;
  return total;
}

PERSEUS_NOT_RACE_CHECKED std::uint8_t* Buffer::at(std::int64_t element) const {
  if (element < first_) {
    first_ = 0;
    piece_ = 0;
  }
  while (element - first_ >= pieces_[piece_].count) first_ += pieces_[piece_++].count;
  return static_cast<std::uint8_t*>(pieces_[piece_].data) +
         static_cast<std::size_t>(element - first_) * size_of(dtype_);
}

// The first byte of each element is accessed here and not only in encode() and decode(), which TSan does not check.
void Buffer::set(std::int64_t element, std::int64_t value) {
  auto* memory = at(element);
  *static_cast<volatile std::uint8_t*>(memory) = 0;
  reference::encode(dtype_, {value, static_cast<double>(value)}, memory);
}

std::int64_t Buffer::get(std::int64_t element) const {
  const auto* memory = at(element);
  static_cast<void>(*static_cast<const volatile std::uint8_t*>(memory));
  const auto value = reference::decode(dtype_, memory);
  return is_floating(dtype_) ? static_cast<std::int64_t>(value.real) : value.whole;
}

bool Buffer::margins_intact() const {
  const auto intact = [](const std::uint8_t* begin, const std::uint8_t* end) {
    return std::all_of(begin, end, [](std::uint8_t byte) { return byte == kUntouched; });
  };
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto* data = static_cast<const std::uint8_t*>(pieces_[i].data);
    const auto bytes = static_cast<std::size_t>(pieces_[i].count) * size_of(dtype_);
    if (!intact(blocks_[i].memory, data) || !intact(data + bytes, blocks_[i].memory + blocks_[i].bytes)) return false;
  }
  return true;
}

std::vector<std::int64_t> cut(std::int64_t count, int pieces) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i + 1 < pieces; ++i) {
    const auto part = i % 4 == 3 ? 0 : std::min<std::int64_t>(count, 1 + count / (pieces + i % 3));
    counts.push_back(part);
    count -= part;
  }
  counts.push_back(count);
  return counts;
}

PERSEUS_NOT_RACE_CHECKED std::int64_t contribution(DType dtype, ReduceOp op, int rank, std::int64_t element,
                                                   std::int64_t unit) {
  if (dtype == DType::boolean) return (element * 7 + rank * 3) % 5 < 3 ? 1 : 0;
  if (op == ReduceOp::product) return 1 + (element + rank) % 2;
  const auto value = (element * 7 + rank * 5) % 6;
  const bool may_be_negative =
      dtype != DType::uint8 && dtype != DType::uint16 && op != ReduceOp::band && op != ReduceOp::bor;
  return (may_be_negative ? value - 2 : value) * unit;
}

PERSEUS_NOT_RACE_CHECKED std::int64_t expected(DType dtype, ReduceOp op, int ranks, std::int64_t element,
                                               std::int64_t unit) {
  auto result = contribution(dtype, op, 0, element, unit);
  for (int rank = 1; rank < ranks; ++rank) {
    const auto next = contribution(dtype, op, rank, element, unit);
    switch (op) {
      case ReduceOp::sum: result = dtype == DType::boolean ? (result | next) : result + next; break;
      case ReduceOp::min: result = std::min(result, next); break;
      case ReduceOp::max: result = std::max(result, next); break;
      case ReduceOp::product: result *= next; break;
      case ReduceOp::band: result &= next; break;
      case ReduceOp::bor: result |= next; break;
      case ReduceOp::bxor: result ^= next; break;
    }
  }
  return result;
}

}  // namespace perseus::testing
