// The liveness wire: sockets to other processes of the job, and the thread that notices at once when one of them ends.
#pragma once

#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "bootstrap/liveness.h"
#include "bootstrap/local_socket.h"
#include "bootstrap/watch_note.h"

namespace perseus {

// A rank that says goodbye has left in order; one whose socket closes without it is lost. On each host the first rank
// is the centre of a star of all of them, and rank 0 that of a star of these. The thread answers even while its process
// is in the middle of a collective, so whoever has something to say just then may use the wires.
class Watch {
 public:
  struct Peer {
    int rank = 0;  // world rank
    UniqueFd socket;
    std::vector<char> heard = {};  // less than a note
    bool left = false;             // said goodbye
    bool gone = false;             // closed: not to be polled any more
  };

  // Called on the watch's thread.
  using Listener = std::function<void(int from, std::string_view words)>;

  // `tells`: passes on to its peers what this process learns of losses. Members of a host's star need not: they hear of
  // each other from its centre alone. Each passes on that this process, rank `self`, gives up.
  Watch(std::vector<Peer> peers, bool tells, Liveness& liveness, const char* thread_name, int self = -1);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Tells the others that this rank leaves in order. Any thread.
  void say_goodbye() { tell_all(WatchNote::goodbye()); }

  // The ranks at the other ends.
  std::vector<int> neighbours() const;
  // At most WatchNote::kText bytes, to one of them. Nothing is said to one that has not taken in what was said before,
  // as when it is stopped. Any thread.
  void say(int rank, std::string_view words);
  // Who hears what the neighbours say; an empty one: nobody any more, once this returns.
  void listen(Listener listener);

  // In a forked child: lets go of the sockets, so that they close when the parent ends. The thread is not there.
  void close_after_fork();

 private:
  void run();
  void hear(Peer& peer);
  void take(Peer& peer, const WatchNote& note);
  void lose(Peer& peer, int error);
  void tell_all(const WatchNote& note) const;

  std::vector<Peer> peers_;  // the thread's; other threads only send, and nobody closes a socket while it runs
  Liveness& liveness_;
  int teller_ = 0;
  std::mutex listening_;  // guards listener_, and is held while it is called, so that leaving waits for it
  Listener listener_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace perseus
