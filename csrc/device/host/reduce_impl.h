// Implements the kernels for all instruction sets. The file of each instruction set defines its instructions and then
// includes this file. It defines kVectorBytes; kBlock, the even number of vectors processed together, which is enough
// to hide latencies and fits into the registers; what elements.h needs; stream (a non-temporal store of an aligned
// vector) and finish_streaming.
#pragma once

#include "device/host/combine.h"
#include "device/host/elements.h"
#include "device/host/lanes.h"
#include "device/host/scaling.h"
#include "device/host/tables.h"

namespace perseus::host {
namespace {

template <class V, int vectors>
PERSEUS_INLINE void put(char* to, const V (&block)[vectors]) {
  for (int i = 0; i < vectors; ++i) store(to + i * sizeof(V), block[i]);
}

template <class V, int vectors>
PERSEUS_INLINE void put_streaming(char* to, const V (&block)[vectors]) {
  for (int i = 0; i < vectors; ++i) stream(to + i * sizeof(V), block[i]);
}

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCopyBytes = kBlock * kVectorBytes;
static_assert(kPage % kCopyBytes == 0);

// Prefetches data one page ahead. Processors prefetch within a page by themselves, but wait at the start of each page.
PERSEUS_INLINE void fetch_ahead(const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i + kPage);
}

// Prefetches a line for writing. A line that another processor has read or written must be requested again before it is
// written. Requested in time and once for both, it costs no more than a line that is only read.
PERSEUS_INLINE void fetch_ahead_to_write(const char* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(to + i + kPage, 1, 2);
}

PERSEUS_INLINE bool has(std::uint64_t bits, std::size_t i) { return i < kStreams && (bits >> i & 1) != 0; }

// Copies the next block of the side copy. Returns the bytes copied so far.
PERSEUS_INLINE std::size_t copy_beside(const Job& job, std::size_t done) {
  using Bytes = VectorOf<std::uint8_t, kVectorBytes>;
  auto* to = static_cast<char*>(job.side_copy_to) + done;
  const auto* from = static_cast<const char*>(job.side_copy_from) + done;
  Bytes block[kBlock];
  for (int i = 0; i < kBlock; ++i) block[i] = load<Bytes>(from + std::ptrdiff_t{i} * kVectorBytes);
  put(to, block);
  return done + kCopyBytes;
}

constexpr std::size_t widest(std::size_t a, std::size_t b, std::size_t c) {
  const std::size_t ab = a > b ? a : b;
  return ab > c ? ab : c;
}

// In is the type of the sources, Wire the type that is combined, and Out the type of the destinations.
template <class In, class Wire, class Out, class Op>
struct Reducer {
  using Compute = ComputeOf<Wire>;
  using Scaling = ScalingOf<Wire>;
  static constexpr std::size_t kInBytes = sizeof(MemoryOf<In>);
  static constexpr std::size_t kOutBytes = sizeof(MemoryOf<Out>);
  static constexpr int kLanes = static_cast<int>(kVectorBytes / widest(sizeof(Compute), kInBytes, kOutBytes));
  static constexpr std::size_t kBlockElements = std::size_t{kBlock} * std::size_t{kLanes};
  using Vector = VectorOf<Compute, kLanes>;
  using InVector = VectorOf<MemoryOf<In>, kLanes>;
  // Elements are independent. If all are bfloat16, adjacent elements may be in two vectors until they are stored.
  static constexpr bool kPairs = std::is_same_v<In, BFloat16> && std::is_same_v<Out, BFloat16>;
  using OutVector = std::conditional_t<kPairs, VectorOf<std::uint32_t, kLanes>, VectorOf<MemoryOf<Out>, kLanes>>;
  static constexpr int kOutVectors = kPairs ? kBlock / 2 : kBlock;

  // Rounds a value to the precision of the wire dtype, as a transfer would.
  PERSEUS_INLINE static void as_if_sent(Vector (&block)[kBlock]) {
    if constexpr (sizeof(MemoryOf<Wire>) < sizeof(Compute)) {
      for (int i = 0; i < kBlock; ++i) block[i] = Element<Wire>::template nearest<kLanes>(block[i]);
    }
  }

  PERSEUS_INLINE static void read(const char* from, Vector (&block)[kBlock]) {
    if constexpr (kPairs) {
      for (int i = 0; i < kBlock; i += 2) {
        widen_bfloat16_pairs<kLanes>(load<OutVector>(from + i * sizeof(InVector)), block[i], block[i + 1]);
      }
    } else {
      for (int i = 0; i < kBlock; ++i) {
        block[i] = Element<In>::template widen<Compute, kLanes>(load<InVector>(from + i * sizeof(InVector)));
      }
    }
  }

  PERSEUS_INLINE static void contribution(const char* from, const Scaling& scaling, Vector (&block)[kBlock]) {
    read(from, block);
    if (scaling.has_pre) scaling.before(block);
    if (scaling.has_pre || !std::is_same_v<In, Wire>) as_if_sent(block);
  }

  PERSEUS_INLINE static void combine(const char* from, const Scaling& scaling, bool first, Vector (&sum)[kBlock]) {
    Vector block[kBlock];
    contribution(from, scaling, block);
    for (int i = 0; i < kBlock; ++i) {
      sum[i] = first ? block[i] : Op::template combine<Compute, kLanes>(sum[i], block[i]);
    }
  }

  PERSEUS_INLINE static void result(Vector (&block)[kBlock], const Scaling& scaling, OutVector (&out)[kOutVectors]) {
    if (scaling.has_post) scaling.after(block);
    if constexpr (kPairs) {
      for (int i = 0; i < kOutVectors; ++i) out[i] = narrow_bfloat16_pairs<kLanes>(block[2 * i], block[2 * i + 1]);
    } else {
      if constexpr (!std::is_same_v<Out, Wire>) as_if_sent(block);
      for (int i = 0; i < kBlock; ++i) out[i] = Element<Out>::template narrow<Compute, kLanes>(block[i]);
    }
  }

  // Processes `count` elements from `at` on. All sources are read before a destination is written, which may be one of
  // them. A partial block is copied to a padded one, so that the same instructions give the same bits.
  PERSEUS_INLINE static void block(const Job& job, const Scaling& scaling, std::size_t at, std::size_t count,
                                   bool ahead) {
    const bool full = count == kBlockElements;
    char padded[kBlock * kVectorBytes];
    if (!full) __builtin_memset(padded, 0, sizeof padded);
    Vector sum[kBlock] = {};
    for (std::size_t s = 0; s < job.sources; ++s) {
      const char* from = static_cast<const char*>(job.from[s]) + at * kInBytes;
      if (ahead && !has(job.overwritten, s)) fetch_ahead(from, kBlockElements * kInBytes);
      if (!full) {
        copy_few(padded, from, count * kInBytes);
        from = padded;
      }
      combine(from, scaling, s == 0, sum);
    }
    OutVector out[kOutVectors];
    result(sum, scaling, out);
    for (std::size_t d = 0; d < job.destinations; ++d) {
      char* to = static_cast<char*>(job.to[d]) + at * kOutBytes;
      if (!full) {
        put(padded, out);
        copy_few(to, padded, count * kOutBytes);
      } else if (has(job.streams, d)) {
        put_streaming(to, out);
      } else {
        if (ahead) fetch_ahead_to_write(to, kBlockElements * kOutBytes);
        put(to, out);
      }
    }
  }

  // Returns the number of elements before the first aligned one of the streamed destinations, which have the same
  // alignment.
  static std::size_t until_aligned(const Job& job) {
    const auto address = reinterpret_cast<std::uintptr_t>(job.to[__builtin_ctzll(job.streams)]);
    return (-address & (sizeof(OutVector) - 1)) / kOutBytes;
  }

  static void run(const Job& shared) {
    const Job job = shared;  // a copy, so that the compiler knows that no store changes it
    const Scaling scaling(job);
    const auto all = static_cast<std::size_t>(job.count);
    std::size_t count = job.streams != 0 ? until_aligned(job) : 0;
    if (count == 0) count = kBlockElements;
    std::size_t side_copy = 0;
    for (std::size_t at = 0; at < all; at += count, count = kBlockElements) {
      if (count > all - at) count = all - at;
      if (job.beside_bytes - side_copy >= kCopyBytes) side_copy = copy_beside(job, side_copy);
      block(job, scaling, at, count, all - at >= (kPage + kCopyBytes) / kInBytes);
    }
    if (side_copy < job.beside_bytes) {
      __builtin_memcpy(static_cast<char*>(job.side_copy_to) + side_copy,
                       static_cast<const char*>(job.side_copy_from) + side_copy, job.beside_bytes - side_copy);
    }
    if (job.streams != 0) finish_streaming();
  }
};

PERSEUS_INLINE void copy_block(char* to, const char* from) {
  using Bytes = VectorOf<std::uint8_t, kVectorBytes>;
  Bytes block[kBlock];
  for (int i = 0; i < kBlock; ++i) block[i] = load<Bytes>(from + std::ptrdiff_t{i} * kVectorBytes);
  put_streaming(to, block);
}

void copy_streaming(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  std::size_t head = -reinterpret_cast<std::uintptr_t>(out) & (kVectorBytes - 1);
  if (head > bytes) head = bytes;
  __builtin_memcpy(out, in, head);
  std::size_t at = head;
  // Alternates between two pages: processors prefetch each page separately, and one page alone does not keep memory
  // busy.
  for (; bytes - at >= 2 * kPage; at += 2 * kPage) {
    for (std::size_t i = at; i < at + kPage; i += kCopyBytes) {
      copy_block(out + i, in + i);
      copy_block(out + i + kPage, in + i + kPage);
    }
  }
  for (; bytes - at >= kCopyBytes; at += kCopyBytes) copy_block(out + at, in + at);
  __builtin_memcpy(out + at, in + at, bytes - at);
  finish_streaming();
}

template <class In, class Wire, class Out>
constexpr void add_arithmetic(ReduceKernel* row) {
  row[static_cast<int>(ReduceOp::sum)] = Reducer<In, Wire, Out, Sum>::run;
  row[static_cast<int>(ReduceOp::min)] = Reducer<In, Wire, Out, Min>::run;
  row[static_cast<int>(ReduceOp::max)] = Reducer<In, Wire, Out, Max>::run;
  row[static_cast<int>(ReduceOp::product)] = Reducer<In, Wire, Out, Product>::run;
}

template <class T>
constexpr void add_bits(ReduceKernel* row) {
  row[static_cast<int>(ReduceOp::band)] = Reducer<T, T, T, BitAnd>::run;
  row[static_cast<int>(ReduceOp::bor)] = Reducer<T, T, T, BitOr>::run;
  row[static_cast<int>(ReduceOp::bxor)] = Reducer<T, T, T, BitXor>::run;
}

template <class T>
constexpr void add_integer(Kernels& kernels, DType dtype) {
  add_arithmetic<T, T, T>(kernels.plain[static_cast<int>(dtype)]);
  add_bits<T>(kernels.plain[static_cast<int>(dtype)]);
}

// A sum of booleans is true if any is true, and a product if all are.
constexpr void add_boolean(ReduceKernel* row) {
  add_bits<Bool>(row);
  row[static_cast<int>(ReduceOp::sum)] = row[static_cast<int>(ReduceOp::bor)];
  row[static_cast<int>(ReduceOp::max)] = row[static_cast<int>(ReduceOp::bor)];
  row[static_cast<int>(ReduceOp::product)] = row[static_cast<int>(ReduceOp::band)];
  row[static_cast<int>(ReduceOp::min)] = row[static_cast<int>(ReduceOp::band)];
}

template <class D, class Wire>
constexpr void add_compressed(ReduceKernel (*ways)[kOpCount]) {
  add_arithmetic<D, Wire, D>(ways[static_cast<int>(Conversion::dtype_to_dtype)]);
  add_arithmetic<D, Wire, Wire>(ways[static_cast<int>(Conversion::dtype_to_wire)]);
  add_arithmetic<Wire, Wire, D>(ways[static_cast<int>(Conversion::wire_to_dtype)]);
}

constexpr Kernels make_kernels(const char* name) {
  Kernels kernels{};
  kernels.name = name;
  kernels.copy_streaming = copy_streaming;
  add_integer<std::uint8_t>(kernels, DType::uint8);
  add_integer<std::int8_t>(kernels, DType::int8);
  add_integer<std::int16_t>(kernels, DType::int16);
  add_integer<std::uint16_t>(kernels, DType::uint16);
  add_integer<std::int32_t>(kernels, DType::int32);
  add_integer<std::int64_t>(kernels, DType::int64);
  add_arithmetic<Float16, Float16, Float16>(kernels.plain[static_cast<int>(DType::float16)]);
  add_arithmetic<BFloat16, BFloat16, BFloat16>(kernels.plain[static_cast<int>(DType::bfloat16)]);
  add_arithmetic<float, float, float>(kernels.plain[static_cast<int>(DType::float32)]);
  add_arithmetic<double, double, double>(kernels.plain[static_cast<int>(DType::float64)]);
  add_boolean(kernels.plain[static_cast<int>(DType::boolean)]);
  add_compressed<float, Float16>(kernels.compressed[0][0]);
  add_compressed<float, BFloat16>(kernels.compressed[0][1]);
  add_compressed<double, Float16>(kernels.compressed[1][0]);
  add_compressed<double, BFloat16>(kernels.compressed[1][1]);
  return kernels;
}

}  // namespace
}  // namespace perseus::host
