// PERSEUS_ALLREDUCE_NANCHECK: finds the first tensor with a NaN or an infinity in a reduction, and the rank it comes
// from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "transport/transport.h"

namespace perseus {

enum class NanCheck : std::uint8_t {
  off,
  warn,  // once
  fail,  // the tensor's handle, on all ranks alike
};

// An element that is no finite number. `piece`: which of the pieces.
struct NotFinite {
  std::int64_t piece = 0, element = 0;
};

// The first one; integers have none.
std::optional<NotFinite> find_not_finite(Pieces pieces, DType dtype);

// Whose value made the first result not finite: the first piece in which any rank had such a value itself, and the
// first rank that had it. `rank` -1: no rank did, the reduction itself went out of range; `found` is then of the
// result.
struct Culprit {
  int rank = -1;
  NotFinite found;
};

// Collective, once a result was found not to be finite, which is so on all ranks or on none. `mine`: of this rank's
// inputs; `result`: of the results.
Status find_culprit(Transport& transport, const std::optional<NotFinite>& mine, const NotFinite& result,
                    Culprit& culprit);

}  // namespace perseus
