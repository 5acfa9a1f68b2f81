// Makes fabrics for ranks that are threads of one process, for tests.
#pragma once

#include <memory>
#include <vector>

#include "transport/fabric.h"
#include "transport/shm/fabric.h"

namespace perseus::shm {

// Makes one fabric per rank; thread r uses fabric r. They share `liveness`.
std::vector<std::unique_ptr<ShmFabric>> make_thread_fabrics(int ranks, Liveness& liveness,
                                                            const FabricOptions& options);

}  // namespace perseus::shm
