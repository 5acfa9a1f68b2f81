// Implements the packing kernels for one tile. This is plain C++ except for CUDA's keywords, so that tests run the same
// code on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define PERSEUS_DEVICE __device__ __forceinline__
#define PERSEUS_PRAGMA(words) _Pragma(#words)
#else
#define PERSEUS_DEVICE inline
#define PERSEUS_PRAGMA(words)
#endif

namespace perseus::cuda {

// A tensor and its place in the packed buffer. It has the same layout on host and device.
struct Segment {
  void* data;
  std::int64_t count;       // elements
  std::int64_t offset;      // place in the buffer, in elements
  std::int64_t first_tile;  // tiles are numbered across all segments
};

// Floating types are multiplied by `factor`. Integers are divided by `divisor` first, and truncated after each step.
struct Scaling {
  double factor;
  std::int64_t divisor;
};

// The number of the block and of the thread within it.
struct Place {
  std::int64_t block;
  int thread;
};

inline constexpr int kThreads = 256;
inline constexpr int kTileBytes = 1 << 15;  // bytes of a tile in the wider of the two types
inline constexpr int kVectorBytes = 16;

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

PERSEUS_DEVICE std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

PERSEUS_DEVICE float float_of(std::uint32_t bits) {
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

PERSEUS_DEVICE float widen(Half value) {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  const std::uint32_t sign = (value.bits & 0x8000U) << 16, magnitude = (value.bits & 0x7fffU) << 13;
  if (magnitude >= 31U << 23) return float_of(sign | magnitude | 0x7f800000U);
  if (magnitude >= 1U << 23) return float_of(sign | (magnitude + (112U << 23)));
  const float subnormal = float_of(magnitude + (113U << 23)) - float_of(113U << 23);
  return float_of(sign | bits_of(subnormal));
#endif
}

PERSEUS_DEVICE float widen(BFloat16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }
PERSEUS_DEVICE float widen(float value) { return value; }
PERSEUS_DEVICE double widen(double value) { return value; }

PERSEUS_DEVICE void narrow(float value, float& to) { to = value; }
PERSEUS_DEVICE void narrow(double value, double& to) { to = value; }
PERSEUS_DEVICE void narrow(float value, double& to) { to = value; }

PERSEUS_DEVICE void narrow(float value, Half& to) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
#else
  const std::uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U;
  } else if (magnitude >= 0x477ff000U) {  // 65520 and above
    half = 0x7c00U;
  } else if (magnitude >= 113U << 23) {
    half = (magnitude - (112U << 23) + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13;
  } else {  // adding 0.5 rounds the digits of a subnormal into the last digits of the sum
    half = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  }
  to.bits = static_cast<std::uint16_t>(sign | half);
#endif
}

// Rounds to nearest even. A NaN keeps its sign and stays a NaN.
PERSEUS_DEVICE void narrow(float value, BFloat16& to) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  to.bits = static_cast<std::uint16_t>((value == value ? rounded : bits | 0x00400000U) >> 16);
}

// The type in which values are scaled, which is the type of sums: float32 if either type has 16 bits.
template <class From, class To>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double, double> {
  using Type = double;
};

template <class From, class To>
struct FloatScale {
  using Wide = typename WideOf<From, To>::Type;
  static constexpr bool kIsCheap = true;

  PERSEUS_DEVICE explicit FloatScale(const Scaling& scaling) : factor(static_cast<Wide>(scaling.factor)) {}
  PERSEUS_DEVICE void operator()(From from, To& to) const { narrow(static_cast<Wide>(widen(from)) * factor, to); }

  Wide factor;
};

// Converts to int64. A value out of range becomes the nearest limit, and NaN becomes 0.
PERSEUS_DEVICE std::int64_t truncated(double value) {
  if (value >= 9223372036854775808.0) return INT64_MAX;
  if (value <= -9223372036854775808.0) return INT64_MIN;
  return value == value ? static_cast<std::int64_t>(value) : 0;
}

template <class T>
struct IntegerScale {
  static constexpr bool kIsCheap = false;

  PERSEUS_DEVICE explicit IntegerScale(const Scaling& scaling)
      : factor(scaling.factor),
        whole(truncated(scaling.factor)),
        is_whole(scaling.factor < 9223372036854775808.0 && static_cast<double>(whole) == scaling.factor),
        divisor(scaling.divisor) {}

  PERSEUS_DEVICE void operator()(T from, T& to) const {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): the elements of an int8 tensor are numbers.
    const auto value = static_cast<std::int64_t>(static_cast<T>(static_cast<std::int64_t>(from) / divisor));
    // A whole factor is exact for every int64; other factors need a double.
    to = is_whole ? static_cast<T>(static_cast<std::uint64_t>(value) * static_cast<std::uint64_t>(whole))
                  : static_cast<T>(truncated(static_cast<double>(value) * factor));
  }

  double factor;
  std::int64_t whole;
  bool is_whole;
  std::int64_t divisor;  // at least 1
};

template <class T>
struct Same {
  static constexpr bool kIsCheap = true;

  PERSEUS_DEVICE explicit Same(const Scaling&) {}
  PERSEUS_DEVICE void operator()(T from, T& to) const { to = from; }
};

template <class From, class To>
struct ScaleOf {
  using Type = FloatScale<From, To>;
};
template <>
struct ScaleOf<std::uint8_t, std::uint8_t> {
  using Type = IntegerScale<std::uint8_t>;
};
template <>
struct ScaleOf<std::int8_t, std::int8_t> {
  using Type = IntegerScale<std::int8_t>;
};
template <>
struct ScaleOf<std::int16_t, std::int16_t> {
  using Type = IntegerScale<std::int16_t>;
};
template <>
struct ScaleOf<std::uint16_t, std::uint16_t> {
  using Type = IntegerScale<std::uint16_t>;
};
template <>
struct ScaleOf<std::int32_t, std::int32_t> {
  using Type = IntegerScale<std::int32_t>;
};
template <>
struct ScaleOf<std::int64_t, std::int64_t> {
  using Type = IntegerScale<std::int64_t>;
};
// Elements that are only copied, or halves of such elements of 8 bytes.
template <class Bits>
struct Word {
  Bits bits;
};
template <class Bits>
struct ScaleOf<Word<Bits>, Word<Bits>> {
  using Type = Same<Word<Bits>>;
};

template <class A, class B>
PERSEUS_DEVICE constexpr int tile_elements() {
  return kTileBytes / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
}

// The elements that fill a vector register of the narrower type.
template <class T, int count>
struct [[gnu::may_alias]] alignas(sizeof(T) * count < kVectorBytes ? sizeof(T) * count : kVectorBytes) Vector {
  T values[count];
};

template <class From, class To>
PERSEUS_DEVICE void move_elements(const From* from, To* to, std::int64_t count, const Scaling& scaling, int thread) {
  using Scale = typename ScaleOf<From, To>::Type;
  constexpr int kFits = kVectorBytes / static_cast<int>(sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));
  // A division of 64-bit integers takes many instructions. Unrolled divisions would make the kernels huge.
  constexpr int kCount = Scale::kIsCheap ? kFits : 1;
  [[maybe_unused]] constexpr int kAtOnce = Scale::kIsCheap ? 4 : 1;
  using In = Vector<From, kCount>;
  using Out = Vector<To, kCount>;
  const Scale scale(scaling);
  std::int64_t begin = 0;
  if (reinterpret_cast<std::uintptr_t>(from) % alignof(In) == 0 &&
      reinterpret_cast<std::uintptr_t>(to) % alignof(Out) == 0) {
    const std::int64_t vectors = count / kCount;
    PERSEUS_PRAGMA(unroll kAtOnce)
    for (std::int64_t i = thread; i < vectors; i += kThreads) {
      const In in = reinterpret_cast<const In*>(from)[i];
      Out out;
      PERSEUS_PRAGMA(unroll)
      for (int j = 0; j < kCount; ++j) scale(in.values[j], out.values[j]);
      reinterpret_cast<Out*>(to)[i] = out;
    }
    begin = vectors * kCount;
  }
  for (std::int64_t i = begin + thread; i < count; i += kThreads) scale(from[i], to[i]);
}

// Returns the last segment that begins at this tile or before it.
PERSEUS_DEVICE const Segment& segment_of(const Segment* segments, int count, std::int64_t tile) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (segments[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return segments[low];
}

// The part of a tile that lies in its segment.
struct Tile {
  std::int64_t begin, count;  // elements of the segment

  PERSEUS_DEVICE Tile(const Segment& segment, std::int64_t tile, int elements)
      : begin((tile - segment.first_tile) * elements),
        count(segment.count - begin < elements ? segment.count - begin : elements) {}
};

template <class Tensor, class Wire>
PERSEUS_DEVICE void pack_tile(const Segment* segments, int count, void* buffer, const Scaling& scaling, Place place) {
  const Segment& segment = segment_of(segments, count, place.block);
  const Tile tile(segment, place.block, tile_elements<Tensor, Wire>());
  move_elements(static_cast<const Tensor*>(segment.data) + tile.begin,
                static_cast<Wire*>(buffer) + segment.offset + tile.begin, tile.count, scaling, place.thread);
}

template <class Tensor, class Wire>
PERSEUS_DEVICE void unpack_tile(const Segment* segments, int count, const void* buffer, const Scaling& scaling,
                                Place place) {
  const Segment& segment = segment_of(segments, count, place.block);
  const Tile tile(segment, place.block, tile_elements<Tensor, Wire>());
  move_elements(static_cast<const Wire*>(buffer) + segment.offset + tile.begin,
                static_cast<Tensor*>(segment.data) + tile.begin, tile.count, scaling, place.thread);
}

}  // namespace perseus::cuda

// The list of kernels: X(name of the tensor's type, name of the wire dtype, the two types). The names of kernels are
// perseus_pack_TENSOR_WIRE and perseus_unpack_TENSOR_WIRE.
#define PERSEUS_PACKINGS(X)                                 \
  X(word1, word1, Word<std::uint8_t>, Word<std::uint8_t>)   \
  X(word2, word2, Word<std::uint16_t>, Word<std::uint16_t>) \
  X(word4, word4, Word<std::uint32_t>, Word<std::uint32_t>) \
  X(uint8, uint8, std::uint8_t, std::uint8_t)               \
  X(int8, int8, std::int8_t, std::int8_t)                   \
  X(int16, int16, std::int16_t, std::int16_t)               \
  X(uint16, uint16, std::uint16_t, std::uint16_t)           \
  X(int32, int32, std::int32_t, std::int32_t)               \
  X(int64, int64, std::int64_t, std::int64_t)               \
  X(float16, float16, Half, Half)                           \
  X(bfloat16, bfloat16, BFloat16, BFloat16)                 \
  X(float32, float32, float, float)                         \
  X(float32, float16, float, Half)                          \
  X(float32, bfloat16, float, BFloat16)                     \
  X(float64, float64, double, double)                       \
  X(float64, float16, double, Half)                         \
  X(float64, bfloat16, double, BFloat16)
