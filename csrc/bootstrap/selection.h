// init(comm=[ranks]): a job of some of the ranks that were started, in an order of its own.
#pragma once

#include <vector>

namespace perseus {

// Whether nothing is selected, or everybody in order: no selection at all.
bool selects_all(const std::vector<int>& selection, int size);

// The rank in the selection of the one that is `rank` of the `size` that were started.
// Throws Error(invalid_argument) where it is not in it, or where a selected rank does not exist or occurs twice.
int rank_in_selection(const std::vector<int>& selection, int rank, int size);

}  // namespace perseus
