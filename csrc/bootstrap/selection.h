// Checks the selection of init(comm=[ranks]), which makes a job of some of the started ranks in a given order.
#pragma once

#include <vector>

namespace perseus {

// Returns true if the selection is empty or has all ranks in order.
bool selects_all(const std::vector<int>& selection, int size);

// Returns the index of `rank` in the selection; `size` ranks were started. Throws Error(invalid_argument) if the rank
// is not selected, or if a selected rank does not exist or occurs twice.
int rank_in_selection(const std::vector<int>& selection, int rank, int size);

}  // namespace perseus
