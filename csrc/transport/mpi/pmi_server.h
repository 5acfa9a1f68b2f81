// The launcher's part in MPI_Init, played within the process: a thread that answers at the other end of a socket.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/local_socket.h"
#include "transport/mpi/pmi.h"

namespace perseus::mpi {

// Lives as long as MPI does, which may ask at any time.
class PmiServer {
 public:
  // `hosts`: every rank's, by rank. `world`: a name that no other job has, the same on all ranks.
  PmiServer(int rank, const std::vector<int>& hosts, const std::string& world, PmiAnswers::Exchange exchange);
  ~PmiServer();
  PmiServer(const PmiServer&) = delete;
  PmiServer& operator=(const PmiServer&) = delete;

  // Runs MPI_Init, with what it looks for in the environment, which is as before afterwards. Throws what `initialize`
  // throws and what an exchange throws; Error(timed_out) when nothing has happened for `limit`, the time in exchanges
  // not counted, as they have their own. After these two MPI_Init is left behind, on its thread.
  void run(const std::function<void()>& initialize, std::chrono::milliseconds limit);

 private:
  void serve();
  bool answer(std::string_view line);
  std::vector<std::string> exchange(std::string_view mine);
  void wait(std::chrono::milliseconds limit);

  int rank_, size_;
  UniqueFd ours_, theirs_;
  PmiAnswers answers_;  // the thread's

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  int steps_ = 0;  // grows with whatever is asked or answered
  bool in_exchange_ = false;
  bool given_up_ = false;       // nobody is answered any more: an error would end the process
  bool has_run_ = false;        // MPI_Init has returned
  std::exception_ptr failure_;  // of MPI_Init, or of an exchange
  PmiAnswers::Exchange exchange_;

  std::thread thread_;
};

}  // namespace perseus::mpi
