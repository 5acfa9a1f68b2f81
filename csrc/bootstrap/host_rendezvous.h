// Connects ranks of several hosts by TCP, for the watch between hosts.
#pragma once

#include <chrono>
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
  // Rank 0 has a connection to each other member, these have one to rank 0, and other ranks have none.
  std::vector<HostPeer> peers;
  // Connections of this leader to others, which carry no bytes. Of two leaders the lower one connects. Up to 128
  // leaders, each is connected with all others; of more, with those whose distance in their order is a power of two.
  std::vector<HostPeer> between_leaders;
  // The other ends of such connections. Nobody accepts them: the kernel answers their probes, and no byte is read.
  std::vector<UniqueFd> listeners;
};

// Connects rank 0 with each other member, and the leaders with one another. Collective over all ranks of `bootstrap`.
// `members` are ascending and begin with rank 0; `leaders` are the first ranks of the other hosts, and members. Ranks
// that cannot connect are left out, and a warning names them. The kernels of both hosts send keepalive probes on each
// connection, which are answered even if the process is stopped or busy. The connection breaks if there is no answer
// within `timeout`.
HostConnections connect_hosts(Bootstrap& bootstrap, const std::vector<int>& members, const std::vector<int>& leaders,
                              const std::vector<std::string>& host_names, const HeartbeatOptions& options);

}  // namespace perseus
