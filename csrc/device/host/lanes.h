// Defines vectors of any element type and length by the compiler's vector types.
// Everything here is in an unnamed namespace, so that each instruction set gets its own code.
#pragma once

#include <cstddef>
#include <cstdint>

// Vectors are passed only between inlined functions, so that their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define PERSEUS_INLINE inline __attribute__((always_inline))

namespace perseus::host {
namespace {

template <class T, int lanes>
struct VectorType {
  typedef T type __attribute__((vector_size(lanes * sizeof(T))));
};

template <class T, int lanes>
using VectorOf = typename VectorType<T, lanes>::type;

template <class V>
PERSEUS_INLINE V load(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class V>
PERSEUS_INLINE void store(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// Copies a few bytes by overlapping loads and stores. Compilers replace memcpy here by `rep movs`, which is slow to
// start, or by a call, which clears the vector registers.
PERSEUS_INLINE void copy_few(char* to, const char* from, std::size_t bytes) {
  using Chunk = VectorOf<std::uint64_t, 2>;
  const auto ends = [&]<class T>(T) {
    store(to, load<T>(from));
    store(to + bytes - sizeof(T), load<T>(from + bytes - sizeof(T)));
  };
  if (bytes >= sizeof(Chunk)) {
    for (std::size_t i = 0; i + sizeof(Chunk) <= bytes; i += sizeof(Chunk)) {
      asm("" : "+r"(i));  // prevents that the compiler replaces this loop by memcpy
      store(to + i, load<Chunk>(from + i));
    }
    ends(Chunk{});
  } else if (bytes >= 8) {
    ends(std::uint64_t{});
  } else if (bytes >= 4) {
    ends(std::uint32_t{});
  } else if (bytes >= 2) {
    ends(std::uint16_t{});
  } else if (bytes == 1) {
    *to = *from;
  }
}

// Returns the same bits as another type.
template <class To, class From>
PERSEUS_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Returns a product that the compiler cannot fuse with a following addition. A fused operation rounds once instead of
// twice, so results would depend on the instruction set. (Clang fuses only within one expression.)
template <class V>
PERSEUS_INLINE V rounded(V value) {
#if defined(__clang__)
#elif defined(__x86_64__)
  asm("" : "+v"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#else
  asm("" : "+m"(value));
#endif
  return value;
}

}  // namespace
}  // namespace perseus::host
