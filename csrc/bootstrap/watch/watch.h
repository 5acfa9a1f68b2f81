// Detects at once that another process of the job has ended, over sockets between the processes.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/local/local_socket.h"
#include "bootstrap/watch/liveness.h"
#include "bootstrap/watch/watch_note.h"

namespace perseus {

// One rank's watch connections and the thread that serves them. A rank that sends a shutdown message has left in order;
// a rank whose socket closes without one is lost. On each host the first rank is connected to all others, and the first
// ranks of the hosts form a tree and a ring (host_watch.h). The thread answers even while its process is in a
// collective, so other messages, such as missing-rank queries, use these connections too.
class Watch {
 public:
  struct Waiting {
    std::chrono::steady_clock::time_point since;
    WatchNote note;
  };
  struct Peer {
    int rank = 0;  // world rank
    UniqueFd socket;
    std::string cut = {};  // the text of the loss if the host does not answer; empty: it is down, or cut off from all
    std::vector<char> received = {};   // an incomplete message
    bool left = false;                 // has sent a shutdown message; guarded by waiting_mutex_
    bool gone = false;                 // closed; not polled any more
    std::deque<Waiting> waiting = {};  // messages for which the socket had no room; guarded by waiting_mutex_
  };

  // Called on the watch's thread.
  using Listener = std::function<void(int from, std::string_view words)>;

  // With `forwards`, the watch forwards to its peers all losses that this process learns of, and the first departure.
  // Ranks other than the first of a host need not, because they have no other peers. Every watch forwards the failure
  // of this process, rank `self`.
  Watch(std::vector<Peer> peers, bool forwards, Liveness& liveness, const char* thread_name, int self = -1);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Sends the shutdown message to the peers. Any thread.
  void announce_shutdown();

  // Returns true once this rank or another one of the job has sent a shutdown message. From then on, a host may vanish
  // because its ranks have ended. Any thread.
  bool any_left() const { return any_left_; }

  // Returns the ranks at the other ends of the connections, without those that have left. Any thread.
  std::vector<int> neighbours() const;
  // Sends at most WatchNote::kText bytes to one neighbour. If the neighbour has not read earlier messages, for example
  // because it is stopped, the message waits until the socket has room. It is dropped after a minute, which is longer
  // than any query waits for an answer. Any thread.
  void send_to(int rank, std::string_view words);
  // Returns the time that a message to a neighbour and the answer may take on the network; 0 for a rank of this host,
  // or of no connection. While the neighbour's kernel acknowledges nothing, the time grows with the time that has
  // passed. Any thread.
  std::chrono::milliseconds round_trip(int rank) const;
  // Sets the function that receives the neighbours' messages. After listen({}) returns, no function is called any more.
  void listen(Listener listener);

  // Call in a forked child, which does not have the thread: closes the sockets, so that they close when the parent
  // ends.
  void close_after_fork();

 private:
  void run();
  void wake() const;
  void send_waiting(Peer& peer);
  void receive(Peer& peer);
  void take(Peer& peer, const WatchNote& note);
  void lose(Peer& peer, int error);
  void report_departure();
  void send_to_all(const WatchNote& note) const;

  std::vector<Peer> peers_;  // owned by the thread; other threads only send, and no socket is closed while it runs
  // Guards Peer::waiting and Peer::left. Held while a message is sent, so that messages keep their order.
  mutable std::mutex waiting_mutex_;
  Liveness& liveness_;
  bool forwards_;
  std::atomic<bool> any_left_{false};
  int reporter_ = 0;
  std::mutex listener_mutex_;  // guards listener_; held during its call, so that listen() waits for it
  Listener listener_;
  UniqueFd wake_;  // an eventfd that ends the thread's poll()
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace perseus
