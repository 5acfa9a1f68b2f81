// What a request must satisfy before it is queued, whoever built it.
#pragma once

#include "engine/work_item.h"

namespace perseus {

// Fills in what was left out: alltoall without splits shares the rows out equally among the set's `ranks`.
// Throws Error(invalid_argument).
void check_arguments(WorkItem& work, int ranks);

}  // namespace perseus
