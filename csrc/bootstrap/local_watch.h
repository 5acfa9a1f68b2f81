// The liveness wire of one host: the thread that notices at once when a process at the other end of a socket ends.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "bootstrap/liveness.h"
#include "bootstrap/local_socket.h"

namespace perseus {

// A rank that says goodbye has left in order; one whose socket closes without it is lost. The star's centre hears of
// its members first and tells the others.
class LocalWatch {
 public:
  struct Peer {
    int rank = 0;  // world rank
    UniqueFd socket;
    bool left = false;  // said goodbye
    bool gone = false;  // closed: not to be polled any more
  };

  // `is_centre`: this rank holds the sockets of all others, and passes on what it learns.
  LocalWatch(std::vector<Peer> peers, bool is_centre, Liveness& liveness);
  ~LocalWatch();
  LocalWatch(const LocalWatch&) = delete;
  LocalWatch& operator=(const LocalWatch&) = delete;

  // Tells the others that this rank leaves in order. Any thread.
  void say_goodbye();

  // In a forked child: lets go of the sockets, so that they close when the parent ends. The thread is not there.
  void close_after_fork();

 private:
  void run();
  void hear(Peer& peer);
  void lose(int rank);

  std::vector<Peer> peers_;  // the thread's; other threads only send, and nobody closes a socket while it runs
  bool is_centre_;
  Liveness& liveness_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace perseus
