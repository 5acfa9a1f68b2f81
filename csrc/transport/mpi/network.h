// Point-to-point messages of MPI's communicators.
#pragma once

#include <memory>
#include <vector>

#include "transport/messages/network.h"
#include "transport/mpi/api.h"
#include "transport/mpi/send_guard.h"

namespace perseus::mpi {

// Takes ownership of communicators of the same ranks, which return their errors. `sends` guards the sends, if given.
std::unique_ptr<messages::PolledNetwork> make_network(Api& api, std::vector<Comm> streams, SendGuard* sends = nullptr);

}  // namespace perseus::mpi
