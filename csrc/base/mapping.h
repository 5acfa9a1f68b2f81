// The same memory at a second place.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace perseus {

// From now on `place` and `memory` are the same `bytes` bytes, with what `place` held before. `memory` is shared
// (mapped by MAP_SHARED), and the pages at `place` are nobody else's. Unmapping `place`, as its owner does in the end,
// leaves `memory` as it is. Where it cannot be done, as for memory that does not begin at a page, `place` keeps what it
// held, and the status says why.
Status show_at(void* place, void* memory, std::size_t bytes);

}  // namespace perseus
