// Executes the collectives of one group over MPI point-to-point messages, and reduces with this library's kernels.
#pragma once

#include <utility>
#include <vector>

#include "transport/mpi/communicator.h"
#include "transport/mpi/reduction.h"
#include "transport/transport.h"

namespace perseus::mpi {

class MpiTransport final : public Transport {
 public:
  // Takes ownership of communicators of the same ranks, over which messages are spread.
  MpiTransport(Api& api, std::vector<Comm> streams, const WaitOptions& options)
      : communicator_(api, std::move(streams), options) {}

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }

  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;
  Status barrier() override;
  bool has_lent_memory() const override { return communicator_.has_lent_memory(); }
  int streams() const override { return communicator_.streams(); }
  void set_streams(int count) override { communicator_.use_streams(count); }

 private:
  template <class WorkItem>
  Status guarded(const WorkItem& work);

  Communicator communicator_;
  Staging staging_;
};

}  // namespace perseus::mpi
