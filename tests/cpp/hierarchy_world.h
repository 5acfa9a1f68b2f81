// Fabrics of several simulated hosts in one process.
#pragma once

#include <memory>
#include <vector>

#include "transport/fabric.h"

namespace perseus::testing {

// `hosts[r]` is the host of rank r. `local` and `cross` have one fabric per rank, each of which can connect all ranks.
std::vector<std::unique_ptr<Fabric>> make_hosts(const std::vector<int>& hosts,
                                                std::vector<std::unique_ptr<Fabric>> local,
                                                std::vector<std::unique_ptr<Fabric>> cross);

// Returns hosts that are uneven for odd sizes, and for which the ranks of a rail do not ascend with the hosts.
std::vector<int> crossed_hosts(int size);

}  // namespace perseus::testing
