// Several made-up hosts in one process: the composition of two engines under test.
#pragma once

#include <memory>
#include <vector>

#include "transport/fabric.h"

namespace perseus::testing {

// `hosts[r]` is the host of rank r; `local` and `cross` hold one fabric per rank, each of which could connect all
// ranks.
std::vector<std::unique_ptr<Fabric>> make_hosts(const std::vector<int>& hosts,
                                                std::vector<std::unique_ptr<Fabric>> local,
                                                std::vector<std::unique_ptr<Fabric>> cross);

// The hosts of some ranks such that they are uneven at odd sizes, and ranks of one lane do not ascend with the hosts.
std::vector<int> crossed_hosts(int size);

}  // namespace perseus::testing
