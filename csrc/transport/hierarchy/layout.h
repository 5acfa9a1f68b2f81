// Describes which ranks of a group share a host, and which of them carry data between hosts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bootstrap/topology.h"

namespace perseus::hierarchy {

// The hosts and the rails of one group. Group ranks are indices into the ascending list of world ranks. Hosts are
// numbered by their lowest group rank. There are as many rails as the smallest host has ranks. Rail k connects the
// ranks with index k on their hosts, and carries slice k of the data.
class Layout {
 public:
  Layout(const Topology& topology, std::span<const int> members);

  int host_count() const { return static_cast<int>(hosts_.size()); }
  int rail_count() const { return rails_; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  int index_of(int rank) const { return index_of_[static_cast<std::size_t>(rank)]; }  // index among its host's ranks
  const std::vector<int>& ranks_on(int host) const { return hosts_[static_cast<std::size_t>(host)]; }
  int size() const { return static_cast<int>(host_of_.size()); }

  // Returns the hosts in the order of the ranks of this rail: the host of the rail's first rank, of its second, …
  std::vector<int> hosts_of_rail(int rail) const;

  // Return world ranks.
  std::vector<int> rail_members(int rail) const;
  std::vector<int> host_members(int host) const;

  // Returns −1 if no member is on that host.
  int find_host(int topology_host) const;

 private:
  std::vector<int> members_;             // world ranks
  std::vector<int> topology_hosts_;      // by host
  std::vector<std::vector<int>> hosts_;  // group ranks of each host, ascending
  std::vector<int> host_of_, index_of_;  // by group rank
  int rails_ = 0;
};

}  // namespace perseus::hierarchy
