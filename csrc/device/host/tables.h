// One table of kernels for each instruction set, and the choice between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/reduce.h"
#include "device/host/kernels.h"

namespace perseus::host {

// What a kernel needs to know of a ReduceCall. Plain pointers, since kernels are compiled with wider instructions
// than the rest of the program: an inline function of a shared class, emitted there and kept by the linker for
// everybody, would crash on a processor without them.
struct Job {
  const void* const* from = nullptr;
  std::size_t sources = 0;
  void* const* to = nullptr;
  std::size_t destinations = 0;
  std::int64_t count = 0;
  double pre = 1.0;
  double post = 1.0;
  std::int64_t divisor = 1;
  // Bit d: destination d gets non-temporal stores. All these are multiples of their element's size, and alike modulo
  // kAlignment, so that one is aligned where the others are.
  std::uint64_t streams = 0;
  std::uint64_t overwritten = 0;  // bit s: source s is a destination as well
  void* beside_to = nullptr;      // a copy to be done by the way
  const void* beside_from = nullptr;
  std::size_t beside_bytes = 0;
};

inline constexpr std::size_t kStreams = 64;  // and sources that are told apart
inline constexpr std::size_t kAlignment = 64;

using ReduceKernel = void (*)(const Job& job);
using CopyKernel = void (*)(void* to, const void* from, std::size_t bytes);

inline constexpr int kOpCount = 7;

// The ways of a compressed value; wire to wire is the plain kernel of the wire type.
enum class Way : std::uint8_t { dtype_to_dtype, dtype_to_wire, wire_to_dtype };
inline constexpr int kWayCount = 3;

struct Kernels {
  const char* name;
  ReduceKernel plain[kDTypeCount][kOpCount];           // null: this type has no such operation
  ReduceKernel compressed[2][2][kWayCount][kOpCount];  // [float32, float64][float16, bfloat16]
  CopyKernel copy_streaming;
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kNeonKernels;

// What this processor can run, the fastest first. Never empty.
std::span<const Kernels* const> usable_kernels();

// kernels.h with a given table.
void copy(const Kernels& kernels, void* to, const void* from, std::size_t bytes, Store store);
void pack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
          Store store);
void unpack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
            Store store);
void reduce(const Kernels& kernels, const ReduceCall& call);

}  // namespace perseus::host
