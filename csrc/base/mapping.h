// The same memory at a second place.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace perseus {

// From now on `place` and `memory` are the same `bytes` bytes, with what `place` held before. Both begin at a page;
// `memory` is shared (mapped by MAP_SHARED), and the pages at `place` are nobody else's. Unmapping `place`, as its
// owner does in the end, leaves `memory` as it is. Where the system cannot do it, `place` keeps what it held, and the
// status says why.
Status show_at(void* place, void* memory, std::size_t bytes);

}  // namespace perseus
