// The bootstrap for ranks that an mpirun has started.
#pragma once

#include <chrono>

#include "bootstrap/mpi.h"
#include "transport/messages/communicator.h"
#include "transport/mpi/library/api.h"

namespace perseus::mpi {

class MpiBootstrap final : public Bootstrap {
 public:
  // Takes ownership of `comm`, which has the ranks of the job.
  MpiBootstrap(Api& api, Comm comm, std::chrono::milliseconds limit);

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::vector<std::string> allgather(std::string_view mine) override;

  Api& api() const { return api_; }
  Comm comm() const { return comm_; }
  std::chrono::milliseconds limit() const { return communicator_.options().limit; }

 private:
  Api& api_;
  Comm comm_;
  messages::Communicator communicator_;
};

}  // namespace perseus::mpi
