// Maps shared memory at a second address.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace perseus {

// Maps the `bytes` bytes of `memory` also at `place`, and keeps the contents of `place`. `memory` is mapped by
// MAP_SHARED, and no other object uses the pages at `place`. Unmapping `place` leaves `memory` as it is. If the mapping
// is impossible, for example for memory that does not begin at a page, `place` keeps its contents and the status says
// why.
Status show_at(void* place, void* memory, std::size_t bytes);

}  // namespace perseus
