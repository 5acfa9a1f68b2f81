// Spreads messages over the streams of one group, and waits for them by polling with growing pauses until a peer is
// lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/memory/lent_memory.h"
#include "bootstrap/watch/liveness.h"
#include "transport/messages/network.h"
#include "transport/transport.h"

namespace perseus::messages {

// The tags of messages. Messages of one communicator that overlap in time have different tags.
enum class Tag : int { barrier = 1, gather, contribution, result, broadcast, allgather, alltoall };

struct WaitOptions {
  const Liveness* liveness = nullptr;
  std::chrono::microseconds spin{30};            // time to poll without sleeping
  std::chrono::milliseconds limit{0};            // a wait without progress for this time is an error; 0: no limit
  std::chrono::microseconds longest_sleep{200};  // between two polls of a network without a doorbell
};

class Communicator;

// Messages in flight. The destructor abandons unfinished messages, which happens only after an error.
class Messages {
 public:
  // Consecutive turns use different streams. Sender and receiver pass the same turn.
  explicit Messages(Communicator& communicator, std::int64_t turn = 0);
  ~Messages();
  Messages(Messages&&) = default;
  Messages& operator=(Messages&&) = delete;

  // Messages may have any length. A message of zero bytes is not sent and not received.
  void send(const void* data, std::size_t bytes, int to, Tag tag);
  void receive(void* data, std::size_t bytes, int from, Tag tag);
  void add(Request request, int peer, bool receiving) { pending_.push_back({request, peer, receiving}); }

  // Returns true once all messages are sent and received. Throws Error.
  bool done();
  // Throws Error(peer_lost | timed_out | transport).
  void wait();
  bool empty() const { return pending_.empty(); }

 private:
  struct Pending {
    Request request;
    int peer;
    bool receiving;
  };
  std::string peers() const;

  Communicator* communicator_;
  int stream_;
  std::vector<Pending> pending_;
};

// A barrier in log2(size) rounds, by messages to as few peers, for callers that do not wait.
class Barrier {
 public:
  explicit Barrier(Communicator& communicator) : communicator_(communicator), tokens_(2) {}

  // Returns true once all ranks have called it. Throws Error.
  bool done();
  // Waits for the messages of the round that the last call of done() has not finished.
  void wait_for_round() {
    if (round_) round_->wait();
  }

 private:
  Communicator& communicator_;
  LentVector<std::byte> tokens_;
  int distance_ = 1;
  std::optional<Messages> round_;
};

// One group of connected ranks. One thread at a time uses a communicator.
class Communicator {
 public:
  Communicator(std::unique_ptr<Network> network, const WaitOptions& options)
      : network_(std::move(network)), in_use_(network_->streams()), options_(options) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Network& network() const { return *network_; }
  int rank() const { return network_->rank(); }
  int size() const { return network_->size(); }

  // Return the ranks at this distance on both sides. If the size is a power of two, ranks exchange in pairs and both
  // are the same, so that collectives whose distances are powers of two need log2(size) connections instead of twice as
  // many.
  int rank_ahead(int distance) const;
  int rank_behind(int distance) const;

  const WaitOptions& options() const { return options_; }

  // The number of streams over which messages are spread. All ranks change it between the same two operations.
  int streams() const { return in_use_; }
  void use_streams(int count) { in_use_ = std::clamp(count, 1, network_->streams()); }

  // Returns true if the engine may still use the memory of abandoned messages.
  bool has_lent_memory() const { return has_lent_memory_; }

  // A collective has failed, so that messages may arrive for which nobody waits. The network stays open.
  void abort() { healthy_ = false; }

  // From here on, the loss of a rank does not end a wait.
  void outlive_session() { options_.liveness = nullptr; }

  void barrier();

  // Gathers the bytes of every rank in log2(size) rounds, by messages to as few peers; meant for few bytes. `bytes` has
  // their number by rank. The rank's own block is the first; afterwards block i is that of rank_ahead(i).
  void gather_small(void* blocks, Counts bytes);

 private:
  friend class Messages;

  std::unique_ptr<Network> network_;
  int in_use_;
  WaitOptions options_;
  bool healthy_ = true;  // no message is in flight after the last collective, so that the network may be closed
  bool has_lent_memory_ = false;
};

}  // namespace perseus::messages
