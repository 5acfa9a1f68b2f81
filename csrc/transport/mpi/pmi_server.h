// Replaces the launcher during MPI_Init by a thread of the process that answers at the other end of a socket.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/liveness.h"
#include "bootstrap/local_socket.h"
#include "transport/mpi/pmi.h"

namespace perseus::mpi {

// The server of one rank. It must live as long as MPI, which may send requests at any time.
class PmiServer {
 public:
  // `hosts` has the host of every rank. `world` is the name of the MPI world, which is the same on all ranks and in no
  // other job.
  PmiServer(int rank, const std::vector<int>& hosts, const std::string& world, PmiAnswers::Exchange exchange);
  ~PmiServer();
  PmiServer(const PmiServer&) = delete;
  PmiServer& operator=(const PmiServer&) = delete;

  // Runs MPI_Init with the variables that it needs, and restores the environment afterwards. Throws what `initialize`
  // and the exchange throw. Throws Error(timed_out) if nothing has happened for `limit`, not counting the time of
  // exchanges, which have their own limit. Throws Error(peer_lost) if `liveness` has lost a rank and no exchange is in
  // progress; an exchange ends by itself then. After each of these failures, MPI_Init is abandoned on its thread.
  void run(const std::function<void()>& initialize, std::chrono::milliseconds limit,
           const Liveness* liveness = nullptr);

 private:
  void serve();
  bool answer(std::string_view line);
  std::vector<std::string> exchange(std::string_view mine);
  void wait(std::chrono::milliseconds limit, const Liveness* liveness);

  int rank_, size_;
  UniqueFd ours_, theirs_;
  PmiAnswers answers_;  // used by the thread only

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  int steps_ = 0;  // counts requests and answers
  bool in_exchange_ = false;
  bool given_up_ = false;       // MPI gets no answers any more, because an error would end the process
  bool has_run_ = false;        // MPI_Init has returned
  std::exception_ptr failure_;  // of MPI_Init or of an exchange
  PmiAnswers::Exchange exchange_;

  std::thread thread_;
};

}  // namespace perseus::mpi
