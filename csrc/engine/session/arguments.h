// Checks a request before it is queued, whichever binding built it.
#pragma once

#include "engine/work_item.h"

namespace perseus {

// Checks the request's arguments and fills in defaults: an alltoall without splits divides its rows equally among the
// set's `ranks`. Throws Error(invalid_argument).
void check_arguments(WorkItem& work, int ranks);

}  // namespace perseus
