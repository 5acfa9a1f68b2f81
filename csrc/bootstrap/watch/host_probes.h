// Notices that the network between two hosts is cut although both still reach others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/endpoint.h"
#include "bootstrap/watch/liveness.h"
#include "bootstrap/watch/watch.h"

namespace perseus {

// The connections of the watch form a tree and a ring, so most pairs of hosts have none. Of each such pair, one host
// probes the other: it begins a TCP connection to a reserved port, which the other host's kernel refuses, even if the
// processes there are stopped or busy. A probe is two packets, and needs no process and no descriptor at the other
// host. Each host is probed until it has answered once, and then while work of this process waits. A host that has
// answered and then leaves several probes unanswered is cut off from this one. A host that has never answered may be
// behind a firewall, so a warning names it.
class HostProbes {
 public:
  struct Target {
    int rank = 0;  // the first rank of the host
    Endpoint endpoint;
  };
  struct Pace {
    std::chrono::milliseconds round;  // from one probe of a host to the next
    int limit;                        // the number of unanswered probes, one after the other, of a host that is cut off

    // Returns the pace for this heartbeat timeout. A process sends at most 50 probes a second, so that with more than
    // about 300 hosts a round takes longer than the interval of the heartbeat.
    static Pace of(std::chrono::seconds timeout, std::size_t targets);
  };

  // Returns the engines of this process whose work waits, each with a number that differs from one collective or
  // receive to the next.
  using Waiting = std::function<std::set<std::pair<std::uint64_t, std::int64_t>>()>;

  // `reserved` is this host's own port for the probes of others. `host_names` are by rank. The watch and the liveness
  // outlive this.
  HostProbes(int rank, std::vector<Target> targets, UniqueFd reserved, Pace pace, std::vector<std::string> host_names,
             const Watch& watch, Liveness& liveness);
  ~HostProbes();
  HostProbes(const HostProbes&) = delete;
  HostProbes& operator=(const HostProbes&) = delete;

  // Starts a thread if there are targets. It stops once a rank of the job is lost or has left.
  void start(Waiting waiting);
  // Returns the text of the loss of a host that does not answer this rank any more, although it may answer others.
  static std::string text_of_cut(int rank, const std::vector<std::string>& host_names);

  // Call in a forked child, which does not have the thread.
  void close_after_fork();

 private:
  struct Probed {
    Target target;
    UniqueFd socket = {};       // of the probe that has no answer yet
    bool is_awaited = false;    // the last probe has no answer yet
    bool has_answered = false;  // ever
    int unanswered = 0;         // probes one after the other
  };

  void run();
  bool probe_all(bool is_stalled);
  bool probe(Probed& probed);
  static void answer(Probed& probed, int error);
  void receive_answers(Deadline until);
  void warn_of_unreached();
  bool is_over() const { return stop_ || watch_.any_left() || liveness_.any_lost(); }

  int rank_;
  std::vector<Probed> probed_;  // the thread's
  UniqueFd reserved_;
  Pace pace_;
  std::vector<std::string> host_names_;
  const Watch& watch_;
  Liveness& liveness_;
  Waiting waiting_;
  UniqueFd wake_;  // an eventfd that ends the thread's poll()
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace perseus
