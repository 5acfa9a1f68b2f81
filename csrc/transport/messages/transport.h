// Executes the collectives of one group over point-to-point messages, and reduces with this library's kernels.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/memory/lent_memory.h"
#include "transport/messages/communicator.h"
#include "transport/transport.h"

namespace perseus::messages {

// Memory kept between calls.
struct Staging {
  static constexpr std::size_t kKeptBytes = 256 << 20;  // larger memory is freed after a call

  LentVector<std::byte> packed;         // this rank's contribution, in the wire dtype
  LentVector<std::byte> contributions;  // received contributions, a few segments of every peer
};

// For the time of a collective, its thread makes progress, so that no other thread has to be woken for each message.
class ProgressScope {
 public:
  explicit ProgressScope(Network& network) : network_(network) { network_.begin_polling(); }
  ~ProgressScope() { network_.leave(); }
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

 private:
  Network& network_;
};

class MessageTransport final : public Transport {
 public:
  MessageTransport(std::unique_ptr<Network> network, const WaitOptions& options)
      : communicator_(std::move(network), options), name_(communicator_.network().name()) {
    std::ranges::transform(name_, name_.begin(), [](unsigned char each) { return std::tolower(each); });
  }

  std::string_view name() const override { return name_; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }

  // The rank that owns an element combines it once, in the order of ranks. The transferred bytes are the least
  // possible, as with a ring. Unlike in a ring, values are rounded only once, the latency does not grow with the number
  // of ranks, and a rank uses a connection to each peer.
  Status allreduce(const Reduction& reduction, Pieces in, Pieces out) override;
  Status reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) override;

  // Broadcasts few bytes over a binomial tree, and many bytes in segments through a chain, in which each link carries
  // them once.
  Status broadcast(Pieces buffers, int root) override;
  Status allgather(const void* in, void* out, Counts bytes) override;
  Status alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) override;
  Status barrier() override;
  bool has_lent_memory() const override { return communicator_.has_lent_memory(); }
  int streams() const override { return communicator_.streams(); }
  void set_streams(int count) override { communicator_.use_streams(count); }

 private:
  template <class Collective>
  Status as_status(const Collective& collective) {
    const ProgressScope progress_scope(communicator_.network());
    try {
      collective();
      if (staging_.packed.size() > Staging::kKeptBytes) staging_.packed = {};
      return {};
    } catch (const Error& error) {
      communicator_.abort();
      return Status::from(error);
    } catch (const std::bad_alloc&) {
      communicator_.abort();
      return {ErrorKind::unavailable,
              "collective over " + std::string(communicator_.network().name()) +
                  ": this rank has no memory left for staging; use smaller tensors or free memory"};
    }
  }

  Communicator communicator_;
  std::string name_;
  Staging staging_;
};

}  // namespace perseus::messages
