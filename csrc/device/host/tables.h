// Defines the table of kernels of each instruction set, and the choice between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/reduce.h"
#include "device/host/kernels.h"

namespace perseus::host {

// The arguments of a kernel, as plain pointers. Kernels are compiled with wider instructions than the rest of the
// program. The linker may keep an inline function of a shared class as compiled there, which would crash on a processor
// without these instructions.
struct Job {
  const void* const* from = nullptr;
  std::size_t sources = 0;
  void* const* to = nullptr;
  std::size_t destinations = 0;
  std::int64_t count = 0;
  double pre = 1.0;
  double post = 1.0;
  std::int64_t divisor = 1;
  // If bit d is set, destination d gets non-temporal stores. The addresses of these are multiples of their element size
  // and equal modulo kAlignment, so that all are aligned at the same elements.
  std::uint64_t streams = 0;
  std::uint64_t overwritten = 0;  // bit s: source s is also a destination
  void* side_copy_to = nullptr;   // see SideCopy
  const void* side_copy_from = nullptr;
  std::size_t beside_bytes = 0;
};

inline constexpr std::size_t kStreams = 64;  // limit of streamed destinations and of overwritten sources
inline constexpr std::size_t kAlignment = 64;

using ReduceKernel = void (*)(const Job& job);
using CopyKernel = void (*)(void* to, const void* from, std::size_t bytes);

inline constexpr int kOpCount = PERSEUS_REDUCE_OPS(PERSEUS_COUNT);

// The conversions of a compressed value. From wire dtype to wire dtype is the plain kernel of that type.
enum class Conversion : std::uint8_t { dtype_to_dtype, dtype_to_wire, wire_to_dtype };
inline constexpr int kConversionCount = 3;

struct Kernels {
  const char* name;
  ReduceKernel plain[kDTypeCount][kOpCount];                  // null if the type has no such operation
  ReduceKernel compressed[2][2][kConversionCount][kOpCount];  // [float32, float64][float16, bfloat16]
  CopyKernel copy_streaming;
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kNeonKernels;

// Returns the tables that this processor supports, from the fastest. Never empty.
std::span<const Kernels* const> usable_kernels();

// The functions of kernels.h with a given table.
void copy(const Kernels& kernels, void* to, const void* from, std::size_t bytes, Store store);
void pack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
          Store store);
void unpack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
            Store store);
void reduce(const Kernels& kernels, const ReduceCall& call);

}  // namespace perseus::host
