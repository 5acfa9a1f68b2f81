// Wraps one MPI communicator, and waits for messages by polling with growing pauses until a peer is lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/lent_memory.h"
#include "bootstrap/liveness.h"
#include "transport/mpi/api.h"
#include "transport/mpi/send_guard.h"
#include "transport/transport.h"

namespace perseus::mpi {

// The tags of messages. Messages of one communicator that overlap in time have different tags.
enum class Tag : int { barrier = 1, gather, contribution, result, broadcast, allgather, alltoall, control };

struct WaitOptions {
  const Liveness* liveness = nullptr;
  std::chrono::microseconds spin{30};  // time to poll without sleeping
  std::chrono::milliseconds limit{0};  // a wait without progress for this time is an error; 0: no limit
  SendGuard* sends = nullptr;          // guards the sends; null: no guard
  bool has_no_mpirun = false;          // no mpirun ends ranks that wait in MPI for a lost one
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
  // Sends one byte. The message is sent once it is received.
  void send_until_received(const std::byte* byte, int to, Tag tag);
  void receive(void* data, std::size_t bytes, int from, Tag tag);

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
  Comm comm_;
  std::vector<Pending> pending_;
};

// A barrier in log2(size) rounds, by messages to as few peers, for callers that do not wait.
class Barrier {
 public:
  explicit Barrier(Communicator& communicator) : communicator_(communicator), tokens_(2) {}

  // Returns true once all ranks have called it. Throws Error.
  bool done();
  // Waits for the messages of the round that the last call of done() has not finished.
  void wait_for_round() { round_->wait(); }

 private:
  Communicator& communicator_;
  LentVector<std::byte> tokens_;
  int distance_ = 1;
  std::optional<Messages> round_;
};

// One group of ranks connected by MPI.
class Communicator {
 public:
  // Takes ownership of `comm`, which returns its errors. One thread at a time uses a communicator.
  Communicator(Api& api, Comm comm, const WaitOptions& options) : Communicator(api, std::vector{comm}, options) {}
  // Takes ownership of communicators of the same ranks, each with its own connection.
  Communicator(Api& api, std::vector<Comm> streams, const WaitOptions& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Api& api() const { return api_; }
  Comm comm() const { return streams_.front(); }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const WaitOptions& options() const { return options_; }

  // The number of streams over which messages are spread. All ranks change it between the same two operations.
  int streams() const { return in_use_; }
  void use_streams(int count) { in_use_ = std::clamp(count, 1, static_cast<int>(streams_.size())); }

  // Returns true if MPI may still use the memory of abandoned messages.
  bool has_lent_memory() const { return has_lent_memory_; }

  // From here on, the loss of a rank does not end a wait.
  void outlive_session() { options_.liveness = nullptr; }

  void barrier();

  // Gathers the bytes of every rank in log2(size) rounds, by messages to as few peers; meant for few bytes. `bytes` has
  // their number by rank. The rank's own block is the first; afterwards block i is that of rank (rank() + i) % size().
  void gather_small(void* blocks, Counts bytes);

 private:
  friend class Messages;
  void give_up(bool lent) {
    healthy_ = false;
    has_lent_memory_ = has_lent_memory_ || lent;
  }

  Api& api_;
  std::vector<Comm> streams_;
  int in_use_;
  WaitOptions options_;
  int rank_;
  int size_;
  bool healthy_ = true;  // no request was abandoned, so that the communicator may be freed
  bool has_lent_memory_ = false;
};

}  // namespace perseus::mpi
