// The bootstrap for ranks that an mpirun has started.
#pragma once

#include <chrono>

#include "bootstrap/mpi.h"
#include "transport/mpi/communicator.h"

namespace perseus::mpi {

class MpiBootstrap final : public Bootstrap {
 public:
  // Takes ownership of `comm`, which has the ranks of the job.
  MpiBootstrap(Api& api, Comm comm, std::chrono::milliseconds limit, const Liveness* liveness = nullptr);

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::vector<std::string> allgather(std::string_view mine) override;

  Api& api() const { return communicator_.api(); }
  Comm comm() const { return communicator_.comm(); }
  std::chrono::milliseconds limit() const { return communicator_.options().limit; }

 private:
  Communicator communicator_;
};

}  // namespace perseus::mpi
