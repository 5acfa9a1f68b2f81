#include "engine/execute/nan_check.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/memory/lent_memory.h"

namespace perseus {
namespace {

// Returns true if all exponent bits are set: an infinity or a NaN.
template <class Bits>
std::int64_t first_with(const void* data, std::int64_t count, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  const auto* from = static_cast<const std::byte*>(data);
  const auto bits_of = [from](std::int64_t i) {
    Bits bits;
    std::memcpy(&bits, from + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
    return bits;
  };
  // Blocks without an early exit, so that the compiler can vectorize the inner loop.
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const auto end = std::min(begin + kBlock, count);
    bool any = false;
    for (auto i = begin; i < end; ++i) any |= (bits_of(i) & exponent) == exponent;
    if (!any) continue;
    for (auto i = begin; i < end; ++i) {
      if ((bits_of(i) & exponent) == exponent) return i;
    }
  }
  return -1;
}

std::int64_t first_in(const Piece& piece, DType dtype) {
  switch (dtype) {
    case DType::float16: return first_with<std::uint16_t>(piece.data, piece.count, 0x7c00);
    case DType::bfloat16: return first_with<std::uint16_t>(piece.data, piece.count, 0x7f80);
    case DType::float32: return first_with<std::uint32_t>(piece.data, piece.count, 0x7f800000U);
    case DType::float64: return first_with<std::uint64_t>(piece.data, piece.count, 0x7ff0000000000000ULL);
    default: return -1;
  }
}

}  // namespace

std::optional<NotFinite> find_not_finite(Pieces pieces, DType dtype) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto element = first_in(pieces[i], dtype);
    if (element >= 0) return NotFinite{static_cast<std::int64_t>(i), element};
  }
  return std::nullopt;
}

Status locate_not_finite(Transport& transport, const std::optional<NotFinite>& mine, const NotFinite& result,
                         NotFiniteOrigin& not_finite) {
  constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
  const NotFinite note = mine.value_or(NotFinite{kNone, 0});
  LentVector<NotFinite> notes(static_cast<std::size_t>(transport.size()));
  const std::vector<std::int64_t> one_each(notes.size(), sizeof note);
  if (auto status = transport.allgather(&note, notes.data(), one_each); !status.ok()) return status;
  const auto first =
      std::min_element(notes.begin(), notes.end(), [](const auto& a, const auto& b) { return a.piece < b.piece; });
  not_finite = first->piece == kNone ? NotFiniteOrigin{-1, result}
                                     : NotFiniteOrigin{static_cast<int>(first - notes.begin()), *first};
  return {};
}

}  // namespace perseus
