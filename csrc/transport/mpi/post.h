// Control messages of one communicator, and the orderly end of it: its number may be used again only once nobody's
// message can still arrive.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "transport/control_channel.h"
#include "transport/mpi/communicator.h"

namespace perseus::mpi {

// Used by one thread at a time. Throws Error.
class Post {
 public:
  // Owns `comm`.
  Post(Api& api, Comm comm, const WaitOptions& options) : communicator_(api, comm, options) {}

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  void send(int to, std::string bytes);
  bool receive(ControlMessage& message);
  // Something sent to `to` is under way; MPI goes on with it only inside its calls.
  bool keeps_for(int to) const;
  bool keeps_any() const { return !leaving_.empty(); }

  // The last that is sent: tells every peer that nothing follows. Liveness may go after it.
  void close();
  // After `close`: true once all peers have closed and nothing is under way. What still arrives is thrown away.
  bool ended();

 private:
  // Members go in reverse order: messages are given up before their memory goes.
  struct Parcel {
    explicit Parcel(Communicator& communicator) : messages(communicator) {}
    ControlMessage content;  // of one that leaves, `from` is whom it goes to
    Messages messages;
  };

  void post(int to, std::string bytes, char kind);
  void let_finished_go();
  void accept_arrivals();

  Communicator communicator_;
  std::list<Parcel> leaving_;   // all of them may finish in any order
  std::list<Parcel> arriving_;  // handed out in the order of their arrival
  int closed_peers_ = 0;
};

// Posts whose channels have gone, until their peers' have gone too. Any thread.
class Retired {
 public:
  void add(std::unique_ptr<Post> post);
  // Lets those go that have ended.
  void sweep();

 private:
  std::mutex mutex_;  // guards the list
  std::list<std::unique_ptr<Post>> posts_;
};

}  // namespace perseus::mpi
