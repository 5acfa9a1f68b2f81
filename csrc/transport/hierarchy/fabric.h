// Makes the fabric for several hosts from one fabric inside each host and one between hosts.
#pragma once

#include <memory>

#include "bootstrap/topology.h"
#include "transport/fabric.h"

namespace perseus::hierarchy {

// `local` connects ranks of this host. It is null on all hosts if the ranks of a host cannot share memory; `cross` is
// then used for all ranks. `cross` connects any ranks. With `flat_allreduce`, allreduces use `cross` as if every rank
// had a host of its own.
// `local->connect` is called with members of this host only, on all hosts at the same time with different members. Its
// BootstrapAllgather is collective over all ranks of the connect() and indexed as the caller's, so the number of
// exchanges must not depend on the members.
std::unique_ptr<Fabric> make_cluster_fabric(const Topology& topology, std::unique_ptr<Fabric> local,
                                            std::unique_ptr<Fabric> cross, bool flat_allreduce = false);

}  // namespace perseus::hierarchy
