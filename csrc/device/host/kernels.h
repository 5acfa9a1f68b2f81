// Copies, converts and reduces elements in host memory by the fastest instruction set of this processor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/reduce.h"

namespace perseus::host {

// The kind of stores. Non-temporal stores do not load the cache line that they overwrite, so they are faster if the
// result is larger than the caches. Destinations that are also sources are in the cache and always get ordinary stores.
enum class Store : std::uint8_t { cached, streaming };

void copy(void* to, const void* from, std::size_t bytes, Store store);

// Multiplies `from` (dtype) by scale.pre, converts it to wire_dtype and writes it to `to`.
void pack(const Reduction& reduction, const void* from, void* to, std::int64_t count, Store store);

// Converts `from` (wire_dtype, already reduced and scaled) to dtype and writes it to `to`. A plain copy if both types
// are equal.
void unpack(const Reduction& reduction, const void* from, void* to, std::int64_t count, Store store);

// The time that this thread has spent in pack() and unpack() during the life of a CopyMeter, for the timeline.
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

// A plain copy that a reduction makes at the same time, so that waits for memory overlap.
struct SideCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

struct ReduceCall {
  Reduction reduction;
  // Contributions in the order in which they are combined, which is the same on all ranks. Packed contributions have
  // type wire_dtype and include scale.pre. Unpacked ones have type dtype, and scale.pre is applied while loading.
  std::span<const void* const> from;
  bool packed = false;
  // All destinations of the result, of type dtype, or wire_dtype if `to_wire`. divisor and post are applied. Values are
  // rounded to wire_dtype first, so that the result does not depend on the transport. May be one of `from`.
  std::span<void* const> to;
  bool to_wire = false;
  std::int64_t count = 0;
  Store store = Store::cached;
  SideCopy side_copy = {};  // done when the call returns, whatever the counts
};

// Reduces contributions. The bits are the same on every processor and at every place of an element. Minimum and maximum
// with a NaN are NaN. Integers wrap. For booleans, sum, max and bor are "any", and product, min and band are "all"; any
// byte other than 0 is true, and Scale is ignored. Throws Error for bit operations on floating types, for wire dtypes
// other than those of Reduction, and for a divisor of 0.
void reduce(const ReduceCall& call);

// The same for packed contributions and one destination.
void reduce_packed(const Reduction& reduction, std::span<const void* const> from, void* to, bool to_wire,
                   std::int64_t count);

// Returns "avx512", "avx2", "neon" or "scalar", for the log and the tests.
const char* instruction_set();

}  // namespace perseus::host
