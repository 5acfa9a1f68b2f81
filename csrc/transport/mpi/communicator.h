// One MPI communicator and the way this library waits on it: polling that soon begins to sleep, and ends with a lost
// peer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bootstrap/liveness.h"
#include "transport/mpi/api.h"
#include "transport/mpi/sends.h"

namespace perseus::mpi {

// Messages of one communicator that overlap in time differ in their tag.
enum class Tag : int { barrier = 1, gather, contribution, result, broadcast, allgather, alltoall, control };

struct WaitOptions {
  const Liveness* liveness = nullptr;
  std::chrono::microseconds spin{30};  // polls so long before it sleeps between looks
  std::chrono::milliseconds limit{0};  // a wait without any progress for so long is an error; 0: none
  Sends* sends = nullptr;              // guards what is sent, unless it is null
  bool has_no_mpirun = false;          // which would end ranks that wait in MPI for a lost one
};

class Communicator;

// Messages under way. What is unfinished when it goes out of scope (an error is on its way) is given up.
class Messages {
 public:
  // Consecutive turns go by different streams; who sends and who receives take the same.
  explicit Messages(Communicator& communicator, std::int64_t turn = 0);
  ~Messages();
  Messages(Messages&&) = default;
  Messages& operator=(Messages&&) = delete;

  // Any length; zero bytes are no message on either side.
  void send(const void* data, std::size_t bytes, int to, Tag tag);
  void receive(void* data, std::size_t bytes, int from, Tag tag);

  // True once all have come and gone. Throws Error.
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

class Communicator {
 public:
  // Owns `comm`, which returns its errors. Used by one thread at a time.
  Communicator(Api& api, Comm comm, const WaitOptions& options) : Communicator(api, std::vector{comm}, options) {}
  // Communicators of the same ranks, each by a connection of its own.
  Communicator(Api& api, std::vector<Comm> streams, const WaitOptions& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Api& api() const { return api_; }
  Comm comm() const { return streams_.front(); }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const WaitOptions& options() const { return options_; }

  // How many streams messages are spread over; all ranks change it between the same two operations.
  int streams() const { return in_use_; }
  void use_streams(int count) { in_use_ = std::clamp(count, 1, static_cast<int>(streams_.size())); }

  // From here on nobody's loss ends a wait.
  void outlive_session() { options_.liveness = nullptr; }

  void barrier();

  // Every rank's `bytes` bytes, for few of them: log2(size) rounds. `blocks` holds size() * bytes, the own one first,
  // and afterwards the block of rank (rank() + i) % size() at i.
  void gather_small(void* blocks, std::size_t bytes);

 private:
  friend class Messages;
  void give_up() { healthy_ = false; }

  Api& api_;
  std::vector<Comm> streams_;
  int in_use_;
  WaitOptions options_;
  int rank_;
  int size_;
  bool healthy_ = true;  // nothing was given up: the communicator may be freed in order
};

}  // namespace perseus::mpi
