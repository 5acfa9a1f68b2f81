#include "transport_buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels_reference.h"

namespace perseus::testing {

namespace {

constexpr std::size_t kMargin = 64;
constexpr std::uint8_t kUntouched = 0xa5;
// Contributions are repeated after so many elements.
constexpr std::int64_t kPeriod = 30;

// Calls visit(element, memory, bytes, size) for parts of these elements: `bytes` are the numbers for `size` bytes of
// memory. Not for each element, because that and an assertion take most of a test's time.
template <typename Visit>
void visit_blocks(DType dtype, const std::vector<Piece>& pieces, const Numbers& numbers, std::int64_t begin,
                  std::int64_t count, const Visit& visit) {
  constexpr std::int64_t kBlock = 4096;
  const auto period = static_cast<std::int64_t>(numbers.size());
  const auto width = size_of(dtype);
  const auto elements = (std::min(count, kBlock) / period + 2) * period;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(elements) * width);
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto value = numbers[static_cast<std::size_t>(i % period)];
    reference::encode(dtype, {value, static_cast<double>(value)}, &bytes[static_cast<std::size_t>(i) * width]);
  }
  std::int64_t first = 0;  // of the piece
  for (const auto& piece : pieces) {
    const auto end = std::min(first + piece.count, begin + count);
    for (auto at = std::max(first, begin); at < end;) {
      const auto phase = (at - begin) % period;
      const auto length = std::min(end - at, elements - phase);
      visit(at, static_cast<std::uint8_t*>(piece.data) + static_cast<std::size_t>(at - first) * width,
            &bytes[static_cast<std::size_t>(phase) * width], static_cast<std::size_t>(length) * width);
      at += length;
    }
    first += piece.count;
  }
}

std::int64_t contribution_to(const Reduction& reduction, int rank, std::int64_t element) {
  const auto [dtype, op] = std::pair(reduction.dtype, reduction.op);
  if (dtype == DType::boolean) return (element * 7 + rank * 3) % 5 < 3 ? 1 : 0;
  if (op == ReduceOp::product) return 1 + (element + rank) % 2;
  const auto value = (element * 7 + rank * 5) % 6;
  const bool may_be_negative =
      dtype != DType::uint8 && dtype != DType::uint16 && op != ReduceOp::band && op != ReduceOp::bor;
  return (may_be_negative ? value - 2 : value) * reduction.scale.divisor;
}

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

void Buffer::fill(const Numbers& numbers, std::int64_t begin, std::int64_t count) {
  visit_blocks(dtype_, pieces_, numbers, begin, count,
               [](std::int64_t, std::uint8_t* memory, const std::uint8_t* bytes, std::size_t size) {
                 std::memcpy(memory, bytes, size);
               });
}

std::int64_t Buffer::first_other(const Numbers& numbers, std::int64_t begin, std::int64_t count) const {
  std::int64_t found = kNone;
  visit_blocks(dtype_, pieces_, numbers, begin, count,
               [&](std::int64_t at, const std::uint8_t* memory, const std::uint8_t* bytes, std::size_t size) {
                 if (found != kNone || std::memcmp(memory, bytes, size) == 0) return;
                 const auto differing = std::mismatch(memory, memory + size, bytes).first - memory;
                 found = at + differing / static_cast<std::ptrdiff_t>(size_of(dtype_));
               });
  return found;
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

Numbers sequence(std::int64_t first, std::int64_t step) {
  Numbers numbers;
  for (std::int64_t i = 0; i < 251; ++i) numbers.push_back((first + i * step) % 251);
  return numbers;
}

Numbers contribution(const Reduction& reduction, int rank, std::int64_t first) {
  Numbers numbers;
  for (std::int64_t i = 0; i < kPeriod; ++i) numbers.push_back(contribution_to(reduction, rank, first + i));
  return numbers;
}

Numbers reduced(const Reduction& reduction, int ranks, std::int64_t first) {
  auto results = contribution(reduction, 0, first);
  for (int rank = 1; rank < ranks; ++rank) {
    const auto more = contribution(reduction, rank, first);
    for (std::size_t i = 0; i < results.size(); ++i) {
      auto& result = results[i];
      const auto next = more[i];
      switch (reduction.op) {
        case ReduceOp::sum: result = reduction.dtype == DType::boolean ? (result | next) : result + next; break;
        case ReduceOp::min: result = std::min(result, next); break;
        case ReduceOp::max: result = std::max(result, next); break;
        case ReduceOp::product: result *= next; break;
        case ReduceOp::band: result &= next; break;
        case ReduceOp::bor: result |= next; break;
        case ReduceOp::bxor: result ^= next; break;
      }
    }
  }
  for (auto& result : results) result /= reduction.scale.divisor;
  return results;
}

}  // namespace perseus::testing
