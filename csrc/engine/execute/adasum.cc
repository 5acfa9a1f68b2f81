#include "engine/execute/adasum.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory/lent_memory.h"
#include "device/host/kernels.h"

namespace perseus {

namespace {

constexpr std::int64_t kGrain = 64;  // elements: slices begin at multiples of it

using Bytes = LentVector<std::byte>;

struct Products {
  double ab = 0, aa = 0, bb = 0;
};

// Several sums beside each other, which the processor can add at once; always the same ones, so that a result does not
// depend on where a slice lies in memory.
template <class T>
Products products_of(const T* a, const T* b, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> ab{}, aa{}, bb{};
  const auto add = [&](std::int64_t i, std::size_t lane) {
    const double x = a[i], y = b[i];
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(i + static_cast<std::int64_t>(lane), lane);
  }
  for (; i < count; ++i) add(i, static_cast<std::size_t>(i % kLanes));
  Products all;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    all.ab += ab[lane];
    all.aa += aa[lane];
    all.bb += bb[lane];
  }
  return all;
}

// `a` becomes the combination. A vector of zeros has no direction: the other one is the result.
template <class T>
void combine(const Products& products, T* a, const T* b, std::int64_t count) {
  const double of_a = products.aa > 0 ? 1 - products.ab / (2 * products.aa) : 1;
  const double of_b = products.bb > 0 ? 1 - products.ab / (2 * products.bb) : 1;
  for (std::int64_t i = 0; i < count; ++i) {
    a[i] = static_cast<T>(of_a * static_cast<double>(a[i]) + of_b * static_cast<double>(b[i]));
  }
}

// Returns the first element of each rank's slice in all pieces together, and the end of the last slice.
std::vector<std::int64_t> bounds_of(std::int64_t total, int ranks) {
  std::vector<std::int64_t> bounds;
  const auto grains = (total + kGrain - 1) / kGrain;
  for (int r = 0; r <= ranks; ++r) bounds.push_back(std::min(total, grains * r / ranks * kGrain));
  return bounds;
}

std::vector<std::int64_t> bytes_between(const std::vector<std::int64_t>& bounds, std::size_t width) {
  std::vector<std::int64_t> bytes;
  for (std::size_t r = 1; r < bounds.size(); ++r) {
    bytes.push_back((bounds[r] - bounds[r - 1]) * static_cast<std::int64_t>(width));
  }
  return bytes;
}

// The parts of the pieces that lie in [begin, end): a length for each piece, many of them 0.
std::vector<std::int64_t> lengths_within(Pieces pieces, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> lengths;
  std::int64_t at = 0;
  for (const auto& piece : pieces) {
    lengths.push_back(std::max<std::int64_t>(0, std::min(end, at + piece.count) - std::max(begin, at)));
    at += piece.count;
  }
  return lengths;
}

// All ranks' values of this rank's slice, combined level by level until rows[0] is the result.
template <class T>
Status combine_rows(Transport& transport, std::vector<T*> rows, const std::vector<std::int64_t>& lengths) {
  while (rows.size() > 1) {
    const auto pairs = rows.size() / 2;
    LentVector<Products> products;
    products.reserve(pairs * lengths.size());
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      std::int64_t at = 0;
      for (const auto length : lengths) {
        products.push_back(products_of(rows[2 * pair] + at, rows[2 * pair + 1] + at, length));
        at += length;
      }
    }
    const Reduction sum{.dtype = DType::float64, .wire_dtype = DType::float64, .op = ReduceOp::sum, .scale = {}};
    const Piece numbers{products.data(), static_cast<std::int64_t>(3 * products.size())};
    if (auto status = transport.allreduce(sum, {&numbers, 1}, {&numbers, 1}); !status.ok()) return status;
    std::vector<T*> next;
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      std::int64_t at = 0;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        combine(products[pair * lengths.size() + i], rows[2 * pair] + at, rows[2 * pair + 1] + at, lengths[i]);
        at += lengths[i];
      }
      next.push_back(rows[2 * pair]);
    }
    if (rows.size() % 2 == 1) next.push_back(rows.back());
    rows = std::move(next);
  }
  return {};
}

// `rows`: each rank's `count` values of type `wire` behind one another. The result, scaled, replaces the first row.
template <class T>
Status combine_slices(Transport& transport, DType type, const Reduction& reduction, std::byte* rows, std::int64_t count,
                      const std::vector<std::int64_t>& lengths) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const bool widened = reduction.wire_dtype != type;
  const Reduction widening{.dtype = type, .wire_dtype = reduction.wire_dtype, .op = ReduceOp::sum, .scale = {}};
  std::vector<T> wide(widened ? ranks * static_cast<std::size_t>(count) : 0);
  auto* values = widened ? wide.data() : reinterpret_cast<T*>(rows);
  if (widened) host::unpack(widening, rows, values, count * transport.size(), host::Store::cached);
  std::vector<T*> starts;
  starts.reserve(ranks);
  for (std::size_t r = 0; r < ranks; ++r) starts.push_back(values + r * static_cast<std::size_t>(count));
  if (auto status = combine_rows(transport, starts, lengths); !status.ok()) return status;
  if (widened || reduction.scale.post != 1.0) {
    Reduction narrowing = widening;
    narrowing.scale.pre = reduction.scale.post;
    host::pack(narrowing, values, rows, count, host::Store::cached);
  }
  return {};
}

}  // namespace

Status adasum(Transport& transport, const Reduction& reduction, Pieces in, Pieces out) {
  if (transport.size() == 1) return transport.allreduce(reduction, in, out);
  std::int64_t total = 0;
  for (const auto& piece : in) total += piece.count;
  const auto width = size_of(reduction.wire_dtype);
  const auto rank = static_cast<std::size_t>(transport.rank()), ranks = static_cast<std::size_t>(transport.size());
  const auto bounds = bounds_of(total, transport.size());
  const auto mine = bounds[rank + 1] - bounds[rank];
  const auto slices = bytes_between(bounds, width);
  const std::vector<std::int64_t> own(ranks, slices[rank]);

  Bytes packed(static_cast<std::size_t>(total) * width);
  Bytes rows(ranks * static_cast<std::size_t>(slices[rank]));
  std::size_t at = 0;
  for (const auto& piece : in) {
    host::pack(reduction, piece.data, packed.data() + at, piece.count, host::Store::cached);
    at += static_cast<std::size_t>(piece.count) * width;
  }
  if (auto status = transport.alltoall(packed.data(), slices, rows.data(), own); !status.ok()) return status;

  const auto lengths = lengths_within(in, bounds[rank], bounds[rank + 1]);
  auto status = reduction.wire_dtype == DType::float64
                    ? combine_slices<double>(transport, DType::float64, reduction, rows.data(), mine, lengths)
                    : combine_slices<float>(transport, DType::float32, reduction, rows.data(), mine, lengths);
  if (!status.ok()) return status;

  if (status = transport.allgather(rows.data(), packed.data(), slices); !status.ok()) return status;
  at = 0;
  for (const auto& piece : out) {
    host::unpack(reduction, packed.data() + at, piece.data, piece.count, host::Store::cached);
    at += static_cast<std::size_t>(piece.count) * width;
  }
  return {};
}

}  // namespace perseus
