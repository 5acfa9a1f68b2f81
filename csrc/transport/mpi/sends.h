// Sends of ranks without an mpirun: libfabric may try for ever to reach a process that has ended, within MPI_Isend, and
// nobody ends the process that is in there.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace perseus::mpi {

class Sends {
 public:
  // From now on every new send throws Error(peer_lost). This process ends, with exit code 1 and this text in its log,
  // if one does not come back from MPI within some seconds.
  void lose(const std::string& text);

  class Call {
   public:
    // Null: nothing to look after.
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
  std::mutex mutex_;  // guards the text
  std::string text_;
};

}  // namespace perseus::mpi
