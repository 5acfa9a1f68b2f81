// Guards sends against lost ranks. MPI_Isend may try forever to reach a process that has ended. An mpirun that takes
// the end of that process for an orderly one does not end the sender.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/error.h"

namespace perseus::mpi {

class SendGuard {
 public:
  // Makes every later send throw Error(peer_lost). If a send in progress does not return from MPI within some seconds,
  // this process ends with exit code 1 and this text in its log.
  void lose(const std::string& text);

  // Returns ok, or Error(peer_lost) with the text of lose().
  Status status() const;

  // Guards one call of MPI for the life of the object.
  class Call {
   public:
    // A null pointer guards nothing.
    explicit Call(SendGuard* sends);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    SendGuard* sends_;
  };

 private:
  void watch();

  std::atomic<int> inside_{0};
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards the text
  std::string text_;
};

}  // namespace perseus::mpi
