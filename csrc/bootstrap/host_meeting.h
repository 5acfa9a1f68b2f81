// How ranks of several hosts get the TCP connections over which their hosts are watched: a star around the first.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/local_socket.h"

namespace perseus {

struct HeartbeatOptions {
  std::chrono::seconds timeout{30};  // 0: no heartbeat. What the first rank says holds for all.
  std::string interfaces = {};       // names of those the first rank may be reached at, as in "eth0,ib0"; empty: any
  std::chrono::milliseconds patience{10'000};
};

struct HostPeer {
  int rank = 0;
  UniqueFd socket;
};

// Collective over all ranks of `bootstrap`; `members`, ascending, begin with rank 0. Rank 0 gets a connection to each
// other member, these get theirs to rank 0, and all others get none. Who cannot be reached is left out with a warning
// of rank 0. On each connection the kernel asks the other host again and again whether it is still there: its kernel
// answers, even where the process is stopped or busy, and without an answer within `timeout` the connection breaks.
std::vector<HostPeer> meet_hosts(Bootstrap& bootstrap, const std::vector<int>& members,
                                 const std::vector<std::string>& host_names, const HeartbeatOptions& options);

}  // namespace perseus
