// States which ranks share a host, and derives local and cross ranks from that.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace perseus {

// The topology of a job. Hosts are numbered in the order of their lowest rank. The cross rank is the host's number
// among the hosts that have a rank with this local rank. (This is Horovod's definition; it also holds for uneven
// hosts.)
class Topology {
 public:
  // `hosts[r]` is the number of rank r's host and `names[r]` its name, for texts. The names may be missing.
  Topology(int rank, std::vector<int> hosts, std::vector<std::string> names = {});

  // Discovers the topology. Collective. A host is identified by boot id, network namespace and hostname, so containers
  // and network namespaces on one machine count as different hosts.
  static Topology discover(Bootstrap& bootstrap);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(hosts_.size()); }
  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  const std::vector<std::string>& host_names() const { return names_; }  // by rank
  int host_count() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& ranks_on(int host) const { return members_[static_cast<std::size_t>(host)]; }
  const std::vector<int>& local_ranks() const { return ranks_on(host_of(rank_)); }

  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(local_ranks().size()); }
  int cross_rank() const { return cross_rank_; }
  int cross_size() const { return cross_size_; }
  bool is_homogeneous() const { return homogeneous_; }

 private:
  int rank_;
  std::vector<int> hosts_;
  std::vector<std::string> names_;
  std::vector<std::vector<int>> members_;  // by host: its ranks, ascending
  int local_rank_ = 0, cross_rank_ = 0, cross_size_ = 1;
  bool homogeneous_ = true;
};

}  // namespace perseus
