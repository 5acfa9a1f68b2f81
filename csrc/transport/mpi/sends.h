// Guards sends against lost ranks: MPI may try for ever to reach a process that has ended, within MPI_Isend, and no
// mpirun ends the process that is in there if it takes the lost rank's end for an orderly one.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/error.h"

namespace perseus::mpi {

class Sends {
 public:
  // From now on every new send throws Error(peer_lost). This process ends, with exit code 1 and this text in its log,
  // if one does not come back from MPI within some seconds.
  void lose(const std::string& text);

  // Ok, or Error(peer_lost) with the text of lose().
  Status status() const;

  class Call {
   public:
    // Null: sends are not guarded.
    explicit Call(Sends* sends);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Sends* sends_;
  };

 private:
  void watch();

  std::atomic<int> inside_{0};
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards the text
  std::string text_;
};

}  // namespace perseus::mpi
