// PERSEUS_ALLREDUCE_NANCHECK: finds the first tensor with a NaN or an infinity in a reduction, and the rank that caused
// it.
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

// An element that is a NaN or an infinity; `piece` is the index of its piece.
struct NotFinite {
  std::int64_t piece = 0, element = 0;
};

// Returns the first such element; integers have none.
std::optional<NotFinite> find_not_finite(Pieces pieces, DType dtype);

// The cause of the first result that is not finite: the first piece in which some rank's input is not finite, and the
// first such rank. If `rank` is -1, all inputs are finite and the reduction itself overflowed; `found` is then an
// element of the result.
struct NotFiniteOrigin {
  int rank = -1;
  NotFinite found;
};

// Finds the cause of a result that is not finite. Collective: either all ranks or none have such a result. `mine` is of
// this rank's inputs, `result` of the results.
Status locate_not_finite(Transport& transport, const std::optional<NotFinite>& mine, const NotFinite& result,
                         NotFiniteOrigin& not_finite);

}  // namespace perseus
