// Executes the collectives of one group over point-to-point messages, and reduces with this library's kernels.
#pragma once

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <utility>

#include "transport/messages/communicator.h"
#include "transport/messages/verbs.h"
#include "transport/transport.h"

namespace perseus::messages {

class MessageTransport final : public Transport {
 public:
  MessageTransport(std::unique_ptr<Network> network, const WaitOptions& options)
      : communicator_(std::move(network), options), name_(communicator_.network().name()) {
    std::ranges::transform(name_, name_.begin(), [](unsigned char each) { return std::tolower(each); });
  }

  std::string_view name() const override { return name_; }
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
  Status as_status(const WorkItem& work);

  Communicator communicator_;
  std::string name_;
  Staging staging_;
};

}  // namespace perseus::messages
