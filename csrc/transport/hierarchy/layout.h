// How the ranks of one group lie on hosts, and which of them carry data between hosts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bootstrap/topology.h"

namespace perseus::hierarchy {

// Group ranks are places in the ascending list of world ranks. Hosts are numbered by their lowest group rank. As many
// ranks of each host as the smallest host has are lanes: lane k of every host together carry slice k of the data.
class Layout {
 public:
  Layout(const Topology& topology, std::span<const int> members);

  int host_count() const { return static_cast<int>(hosts_.size()); }
  int lane_count() const { return lanes_; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  int index_of(int rank) const { return index_of_[static_cast<std::size_t>(rank)]; }  // among the ranks of its host
  const std::vector<int>& ranks_on(int host) const { return hosts_[static_cast<std::size_t>(host)]; }
  int size() const { return static_cast<int>(host_of_.size()); }

  // The hosts in the order in which their ranks of this lane ascend: host of the lane's first rank, second, …
  std::vector<int> hosts_of_lane(int lane) const;

  // World ranks.
  std::vector<int> lane_members(int lane) const;
  std::vector<int> host_members(int host) const;

  // -1 when no member is on that host.
  int find_host(int topology_host) const;

 private:
  std::vector<int> members_;             // world ranks
  std::vector<int> topology_hosts_;      // by host
  std::vector<std::vector<int>> hosts_;  // group ranks of each host, ascending
  std::vector<int> host_of_, index_of_;  // by group rank
  int lanes_ = 0;
};

}  // namespace perseus::hierarchy
