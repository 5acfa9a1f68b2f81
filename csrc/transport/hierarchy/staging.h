// What the verbs between hosts share: memory that is kept, a reduction in two steps, failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "base/error.h"
#include "base/reduce.h"
#include "transport/scattered.h"

namespace perseus::hierarchy {

// Below it one message between hosts beats one per lane.
inline constexpr std::int64_t kSliceBytes = 64 << 10;
inline constexpr std::int64_t kGrain = 64;  // elements: slices and chunks begin at multiples of it

// Packs and unpacks elements as they are.
inline Reduction copy_of(DType dtype) {
  Reduction reduction;
  reduction.dtype = reduction.wire = dtype;
  return reduction;
}

// One reduction as two: within hosts, then between them.
struct Levels {
  explicit Levels(const Reduction& whole) : local(whole), cross(whole) {
    local.wire = whole.dtype;
    // A host's sum that is to be averaged may not fit 16 bits, and what follows is linear: it is scaled early.
    const bool is_16_bit = whole.wire == DType::float16 || whole.wire == DType::bfloat16;
    const bool early = whole.op == ReduceOp::sum && is_16_bit;
    if (!early) local.scale = {.pre = whole.scale.pre};
    cross.scale = early ? Scale{} : Scale{.post = whole.scale.post, .divisor = whole.scale.divisor};
  }

  Reduction local, cross;
};

template <class Work>
Status guarded(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable, "not enough memory to stage a collective between hosts"};
  }
}

}  // namespace perseus::hierarchy
