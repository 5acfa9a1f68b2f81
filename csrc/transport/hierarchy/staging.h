// Helpers of the verbs between hosts: a reduction in two levels, and failures.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "base/error.h"
#include "base/reduce.h"
#include "transport/scattered.h"

namespace perseus::hierarchy {

// Below this size one message between hosts is faster than one per rail.
inline constexpr std::int64_t kSliceBytes = 64 << 10;
// Staging memory of up to this size is kept between calls.
inline constexpr std::size_t kMostKeptBytes = 16 << 20;
inline constexpr std::int64_t kGrain = 64;  // slices and chunks begin at multiples of this number of elements

// Returns a reduction that packs and unpacks elements without conversion or scaling.
inline Reduction copy_of(DType dtype) {
  Reduction reduction;
  reduction.dtype = reduction.wire_dtype = dtype;
  return reduction;
}

// Splits one reduction into two: within hosts, then between them.
struct Levels {
  Levels(const Reduction& whole, int hosts) : local(whole), cross(whole) {
    local.wire_dtype = whole.dtype;
    local.scale = {.pre = whole.scale.pre};
    cross.scale = {.post = whole.scale.post, .divisor = whole.scale.divisor};
    if (whole.op != ReduceOp::sum) return;
    if (whole.wire_dtype != DType::float16 && whole.wire_dtype != DType::bfloat16) return;
    // A sum of 16-bit values within a host may overflow before it is averaged, and what is divided by all ranks at once
    // may vanish before it is added. So within the host it gets the size of the result; the rest is done while the sum
    // between hosts is in 32 bits.
    const double factor = whole.scale.post / static_cast<double>(whole.scale.divisor);
    const double within = std::abs(factor) * hosts;
    if (!(within > 0 && within < 1)) return;
    local.scale.post = within;
    cross.scale = {.post = factor / within};
  }

  Reduction local, cross;
};

template <class WorkItem>
Status as_status(const WorkItem& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable,
            "collective between hosts: this rank has no memory left for staging; use smaller tensors or free memory"};
  }
}

}  // namespace perseus::hierarchy
