// Makes the fabric that connects the ranks of several hosts by UCX, without an MPI.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch/liveness.h"
#include "transport/fabric.h"
#include "transport/ucx/connections.h"

namespace perseus::ucx {

struct UcxJob {
  LibraryPaths library;
  ConnectionOptions connections;
  std::chrono::microseconds spin{30};
  bool watched = true;  // rank 0 says whether a lost host is noticed
};

// The version of UCX that a rank has, or the reason why it has none.
struct Offer {
  std::string version;  // "1.22": other releases of it are compatible
  std::string why_none;
};

// Collective over the bootstrap's ranks. Returns the offers by rank.
std::vector<Offer> exchange_offers(Bootstrap& bootstrap, const LibraryPaths& library);

// Collective over the bootstrap's ranks, which all have the same version of UCX. Throws Error.
std::unique_ptr<Fabric> make_ucx_fabric(Bootstrap& bootstrap, Liveness& liveness, const UcxJob& job);

}  // namespace perseus::ucx
