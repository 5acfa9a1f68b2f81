// The collective verbs of one group of ranks over MPI point-to-point messages, with arithmetic of our own.
#pragma once

#include <utility>
#include <vector>

#include "transport/mpi/communicator.h"
#include "transport/mpi/reduction.h"
#include "transport/transport.h"

namespace perseus::mpi {

class MpiTransport final : public Transport {
 public:
  // Owns the communicators, which have the same ranks: messages are spread over them.
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
  int streams() const override { return communicator_.streams(); }
  void set_streams(int count) override { communicator_.use_streams(count); }

 private:
  template <class Work>
  Status guarded(const Work& work);

  Communicator communicator_;
  Staging staging_;
};

}  // namespace perseus::mpi
