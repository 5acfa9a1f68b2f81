// Arithmetic on host memory: copy, convert, reduce; the fastest form for this processor, picked at run time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/reduce.h"

namespace perseus::host {

// Non-temporal stores do not fetch the line they overwrite: they win where the result is larger than the caches.
// Destinations that are sources as well are in the cache already and get ordinary stores either way.
enum class Store : std::uint8_t { cached, streaming };

void copy(void* to, const void* from, std::size_t bytes, Store store);

// `from` (dtype) times scale.pre, converted to `wire`, into `to`.
void pack(const Reduction& reduction, const void* from, void* to, std::int64_t count, Store store);

// `from` (wire, already reduced and scaled) widened to dtype, into `to`. A plain copy when the two are equal.
void unpack(const Reduction& reduction, const void* from, void* to, std::int64_t count, Store store);

// How long this thread spent in pack() and unpack() while a CopyMeter lived on it: for the timeline.
struct CopyTimes {
  std::chrono::nanoseconds in{0}, out{0};
};

class CopyMeter {
 public:
  CopyMeter();
  ~CopyMeter();
  CopyMeter(const CopyMeter&) = delete;
  CopyMeter& operator=(const CopyMeter&) = delete;
  const CopyTimes& times() const { return times_; }

 private:
  CopyTimes times_;
};

// A plain copy to be done by the way: the processor waits for one memory while it waits for the other.
struct Beside {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

struct ReduceCall {
  Reduction reduction;
  // Contributions in the order in which they are combined, the same on all ranks. Packed contributions are of type
  // `wire` with scale.pre applied; unpacked ones (all of them) of type `dtype`, scale.pre is applied while loading.
  std::span<const void* const> from;
  bool packed = false;
  // Every place that gets the result: dtype, or wire when `to_wire`. divisor and post are applied, and values are
  // rounded to `wire` first, so that a result is the same whichever way it took. May be one of `from`.
  std::span<void* const> to;
  bool to_wire = false;
  std::int64_t count = 0;
  Store store = Store::cached;
  Beside beside = {};  // done when the call returns, whatever the counts
};

// The same bits on every processor, and wherever an element lies. Minimum and maximum with a NaN are NaN. Integers
// wrap. Booleans: sum, max and bor are "any", product, min and band are "all"; any byte but 0 is true, and Scale is
// nothing to them. Throws Error for what does not exist: bit operations on floating types, other wires than those of
// Reduction, a divisor of 0.
void reduce(const ReduceCall& call);

// The same of contributions that have travelled, into one place.
void reduce_packed(const Reduction& reduction, std::span<const void* const> from, void* to, bool to_wire,
                   std::int64_t count);

// "avx512", "avx2", "neon" or "scalar": for the log and the tests, which run every form this processor has.
const char* instruction_set();

}  // namespace perseus::host
