// The ranks of one host, connected over a private Unix socket: a star around the first of them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/authenticated_listener.h"
#include "bootstrap/liveness.h"
#include "bootstrap/local_socket.h"
#include "bootstrap/watch.h"

namespace perseus {

// A name for a star nobody can guess.
std::string random_star_address();

// Calls are collective over the star and come in the same order on all its ranks.
class LocalStar {
 public:
  // The first half of `address` names the socket, which everybody on the host can list. The second half is a secret
  // that each rank must know (authentication.h). Only processes of the same user are let in. Ranks that do not come
  // within `limit` are named in the Error(timed_out); later calls wait as long for each other. Waiting for ranks ends
  // with Error(peer_lost) once the descriptor `called_off` (-1: none) is readable.
  LocalStar(std::string_view address, int rank, int size, std::chrono::milliseconds limit, int called_off = -1);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Every rank's bytes, by rank. Throws Error(peer_lost | timed_out).
  std::vector<std::string> allgather(std::string_view mine);

  // Every rank's file descriptor (one's own as well, duplicated), by rank.
  std::vector<UniqueFd> exchange_fds(int mine);

  // From here on the star only watches over its ranks: `world_ranks[r]` is how Liveness knows rank r.
  void watch(Liveness& liveness, const std::vector<int>& world_ranks);

  // What watch() has made of it, if anything.
  Watch* wires() const { return watch_.get(); }

  // The end that follows is in order. Without it the others take it for a death.
  void say_goodbye();
  void close_after_fork();

 private:
  void gather_ranks(const std::string& name, std::string_view secret, Deadline deadline);
  void add_rank(Admitted admitted, Deadline deadline);
  [[noreturn]] void give_up(int come);
  void refuse(const std::string& why);
  void join(const std::string& name, std::string_view secret, Deadline deadline);
  void check(Wire wire, int peer) const;
  void check_called_off() const;
  Deadline deadline() const { return std::chrono::steady_clock::now() + limit_; }

  int rank_;
  int size_;
  std::chrono::milliseconds limit_;
  int called_off_;
  std::vector<UniqueFd> sockets_;  // the centre: by rank, its own empty; others: the centre's alone
  std::unique_ptr<Watch> watch_;
};

}  // namespace perseus
