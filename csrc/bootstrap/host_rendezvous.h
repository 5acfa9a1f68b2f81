// Connects ranks of several hosts by TCP, for the watch between hosts.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local/local_socket.h"

namespace perseus {

struct HeartbeatOptions {
  std::chrono::seconds timeout{30};            // 0: no heartbeat. The value of rank 0 applies to all ranks.
  std::string interfaces = {};                 // interfaces on which ranks listen, such as "eth0,ib0"; empty: any
  std::chrono::milliseconds patience{10'000};  // limit for connecting
};

struct HostPeer {
  int rank = 0;
  UniqueFd socket;
};

struct HostConnections {
  std::vector<HostPeer> peers;      // the ranks with which this one is connected
  std::chrono::seconds timeout{0};  // rank 0's; 0: there are no connections
  bool is_complete = true;          // `peers` has all of them
};

// The members of a watch form a tree, in which each has at most this number of children, and a ring.
inline constexpr std::size_t kWatchFanOut = 2;

// Returns the place of a member's parent; `place` is not 0.
constexpr std::size_t parent_place(std::size_t place) { return (place - 1) / kWatchFanOut; }

// Returns the places of the members with which a member makes connections: its parent in the tree, the one before it in
// the ring, and the first one if it is the last. Without one member, all others are still connected with each other.
std::vector<std::size_t> places_to_connect(std::size_t place, std::size_t members);

// Returns the time between two probes of a connection.
std::chrono::seconds heartbeat_interval(std::chrono::seconds timeout);

// Makes the kernel break the connection this time after the first probe without an answer, within 10 %. Same as
// set_keepalive() in perseus_like/launch/mpi/rank_main.py.
void set_heartbeat(int socket, std::chrono::seconds timeout);

// Connects the members with each other as a tree and a ring. Collective over all ranks of `bootstrap`. `members` are
// ascending and begin with rank 0. Ranks that cannot connect are left out, and a warning names them. The kernels of
// both hosts send keepalive probes on each connection, which are answered even if the process is stopped or busy. The
// connection breaks if there is no answer within the timeout.
HostConnections connect_hosts(Bootstrap& bootstrap, const std::vector<int>& members,
                              const std::vector<std::string>& host_names, const HeartbeatOptions& options);

}  // namespace perseus
