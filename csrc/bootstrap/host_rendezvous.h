// Connects ranks of several hosts to rank 0 by TCP, for the watch between hosts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local_socket.h"

namespace perseus {

struct HeartbeatOptions {
  std::chrono::seconds timeout{30};            // 0: no heartbeat. The value of rank 0 applies to all ranks.
  std::string interfaces = {};                 // interfaces on which rank 0 listens, such as "eth0,ib0"; empty: any
  std::chrono::milliseconds patience{10'000};  // limit for connecting
};

struct HostPeer {
  int rank = 0;
  UniqueFd socket;
};

// Connects rank 0 with each other member. Collective over all ranks of `bootstrap`. `members` are ascending and begin
// with rank 0. Rank 0 gets a connection to each other member, these get one to rank 0, and other ranks get none.
// Members that cannot connect are left out, and rank 0 warns about them. The kernels of both hosts send keepalive
// probes on each connection, which are answered even if the process is stopped or busy. The connection breaks if there
// is no answer within `timeout`.
std::vector<HostPeer> connect_hosts(Bootstrap& bootstrap, const std::vector<int>& members,
                                    const std::vector<std::string>& host_names, const HeartbeatOptions& options);

}  // namespace perseus
