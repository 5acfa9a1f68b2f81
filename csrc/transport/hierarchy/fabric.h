// Several hosts: an engine inside each host and one between them, composed through the transport interface alone.
#pragma once

#include <memory>

#include "bootstrap/topology.h"
#include "transport/fabric.h"

namespace perseus::hierarchy {

// `local` connects ranks of this host; it is null where they cannot reach each other, and then `cross` carries
// everything on all hosts. `cross` connects any ranks.
// `flat_allreduce`: allreduces go over `cross` as if every rank had a host of its own.
// `local->connect` is called with members of this host only, on all hosts at the same time with different members; its
// Exchange is collective over all ranks of the connect and indexed as the caller's, so the number of exchanges must not
// depend on the members.
std::unique_ptr<Fabric> make_cluster_fabric(const Topology& topology, std::unique_ptr<Fabric> local,
                                            std::unique_ptr<Fabric> cross, bool flat_allreduce = false);

}  // namespace perseus::hierarchy
