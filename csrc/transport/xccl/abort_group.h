// Ends the communicators of one rank together after a failure, while other threads may call the library.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/watch/liveness.h"
#include "transport/xccl/device.h"
#include "transport/xccl/libraries/library.h"

namespace perseus::xccl {

// A communicator of the library, and the calls that are in it. An abort frees the communicator, so it waits for these
// calls. Thread-safe.
class CommHandle {
 public:
  CommHandle(std::shared_ptr<const Library> library, std::shared_ptr<Device> device, Comm comm)
      : library_(std::move(library)), device_(std::move(device)), comm_(comm) {}

  Comm comm() const { return comm_; }
  const Library& library() const { return *library_; }

  // Keeps the communicator from being freed. begun() is false if the communicator was closed before.
  class Call {
   public:
    explicit Call(CommHandle& handle) : handle_(handle), begun_(handle.enter()) {}
    ~Call() {
      if (begun_) handle_.leave();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    bool begun() const { return begun_; }

   private:
    CommHandle& handle_;
    bool begun_;
  };

  // Lets no further call begin. Returns true if the caller must now end the communicator, and false if it was closed
  // before.
  bool close();
  bool is_closed() const;

  // Waits until no call is in the communicator. Gives up at `until`, and then returns false.
  bool await_calls(std::chrono::steady_clock::time_point until);
  // Makes the communicator's device current on the calling thread, and aborts the communicator. Failures are ignored.
  // The abort frees the communicator, so no call may be in it.
  void abort();
  // States that the library has ended the communicator.
  void set_ended();
  // Waits until the thread that aborts the communicator has ended it. Gives up at `until`.
  void await_end(std::chrono::steady_clock::time_point until);

 private:
  bool enter();
  void leave();

  std::shared_ptr<const Library> library_;
  std::shared_ptr<Device> device_;  // null once the communicator has ended
  Comm comm_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  int calls_ = 0;
  bool closed_ = false, ended_ = false;
};

// The communicators of one rank on its device. The library's abort may wait for the device, thus for kernels of the
// other communicators that wait for the lost peer, so all are aborted at the same time. Thread-safe.
class AbortGroup {
 public:
  // Returns a group that is aborted when a rank is lost.
  static std::shared_ptr<AbortGroup> make(Liveness& liveness);

  // Adds a communicator. It is aborted at once if the group was aborted before.
  void add(const std::shared_ptr<CommHandle>& handle);

  // Closes all communicators and returns. Another thread then aborts them, because that may block. It ends the process
  // if a call does not return that the library cannot end. `why` is the first error, for the errors of the other
  // communicators.
  void abort(const std::string& why);
  // Does the same for one communicator.
  static void abort(const std::shared_ptr<CommHandle>& handle, const std::string& why);
  // Returns the reason of the first abort.
  std::string why() const;

 private:
  mutable std::mutex mutex_;  // guards the rest
  std::string why_;
  std::vector<std::weak_ptr<CommHandle>> handles_;
  bool aborted_ = false;
};

}  // namespace perseus::xccl
