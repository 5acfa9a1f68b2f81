// Connects the ranks of one host with the first of them over a Unix socket.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bootstrap/authenticated_listener.h"
#include "bootstrap/local/local_socket.h"
#include "bootstrap/watch/liveness.h"
#include "bootstrap/watch/watch.h"

namespace perseus {

// Returns a random address that cannot be guessed.
std::string random_rendezvous_address();

// Returns the name of the socket for an address, without the leading zero byte. Every user of the host can list it. It
// reveals nothing about the address, and so nothing about the names of the job's other sockets, which others could
// take.
std::string socket_name(std::string_view address);

// The rendezvous of the ranks of one host, in a star topology around the first of them. Calls are collective over its
// ranks and come in the same order on all of them.
class LocalRendezvous {
 public:
  // `address` is a secret that each rank must know (authentication.h). Only processes of the same user are accepted.
  // Throws Error(timed_out) that names the ranks that do not connect within `limit`; later calls have the same limit.
  // Throws Error(unavailable) on all ranks if rank 0 may not open a connection to each of them.
  // Throws Error(peer_lost) once the descriptor `cancel_fd` (−1: none) is readable.
  LocalRendezvous(std::string_view address, int rank, int size, std::chrono::milliseconds limit, int cancel_fd = -1);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Gathers the bytes of every rank, by rank. Throws Error(peer_lost | timed_out).
  std::vector<std::string> allgather(std::string_view mine);

  // Throws Error(unavailable) on all ranks if one of them passes a text: its failure in a step of `what`, which all
  // ranks take together.
  void agree(std::string_view what, const std::string& failure);

  // Gathers the file descriptors of every rank, by rank. The rank's own is duplicated. Throws Error(unavailable) on all
  // ranks if one of them lacks descriptors.
  std::vector<UniqueFd> exchange_fds(int mine);

  // Turns the connections into a watch; only the calls below are allowed afterwards. `world_ranks[r]` is the world rank
  // of rank r.
  void watch(Liveness& liveness, const std::vector<int>& world_ranks);

  // Returns the watch that watch() has made, or null.
  Watch* watch_connections() const { return watch_.get(); }
  // Ends the watch, and closes its connections.
  void end_watch() { watch_.reset(); }

  // Announces an orderly shutdown. Without it the other ranks take the end of this rank for a death.
  void announce_shutdown();
  void close_after_fork();

 private:
  void gather_ranks(const std::string& name, std::string_view secret, Deadline deadline);
  void add_rank(Admitted admitted, Deadline deadline);
  [[noreturn]] void raise_timeout(int come);
  [[noreturn]] void refuse(ErrorKind kind, const std::string& why);
  void join(const std::string& name, std::string_view secret, Deadline deadline);
  void check(IoResult result, int peer);
  void receive_fd_of(int peer, int socket, UniqueFd& fd, Deadline deadline, std::string& lack);
  void check_cancelled() const;
  Deadline deadline() const { return std::chrono::steady_clock::now() + limit_; }

  int rank_;
  int size_;
  std::chrono::milliseconds limit_;
  int cancel_fd_;
  std::vector<UniqueFd> sockets_;  // the first rank: by rank, its own is empty; other ranks: only the first rank's
  std::optional<Error> failed_;    // the connections are in an unknown state, so that later calls fail, too
  std::unique_ptr<Watch> watch_;
};

}  // namespace perseus
