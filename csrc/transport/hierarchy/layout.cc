#include "transport/hierarchy/layout.h"

#include <algorithm>

namespace perseus::hierarchy {

Layout::Layout(const Topology& topology, std::span<const int> members) : members_(members.begin(), members.end()) {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    const int topology_host = topology.host_of(members_[static_cast<std::size_t>(rank)]);
    int host = find_host(topology_host);
    if (host < 0) {
      host = host_count();
      topology_hosts_.push_back(topology_host);
      hosts_.emplace_back();
    }
    auto& ranks = hosts_[static_cast<std::size_t>(host)];
    host_of_.push_back(host);
    index_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  const auto smallest =
      std::min_element(hosts_.begin(), hosts_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (smallest != hosts_.end()) rails_ = static_cast<int>(smallest->size());
}

std::vector<int> Layout::hosts_of_rail(int rail) const {
  std::vector<int> hosts(hosts_.size());
  for (int host = 0; host < host_count(); ++host) hosts[static_cast<std::size_t>(host)] = host;
  std::sort(hosts.begin(), hosts.end(), [&](int a, int b) {
    const auto place = static_cast<std::size_t>(rail);
    return ranks_on(a)[place] < ranks_on(b)[place];
  });
  return hosts;
}

std::vector<int> Layout::rail_members(int rail) const {
  std::vector<int> ranks;
  for (const int host : hosts_of_rail(rail)) {
    ranks.push_back(members_[static_cast<std::size_t>(ranks_on(host)[static_cast<std::size_t>(rail)])]);
  }
  return ranks;
}

std::vector<int> Layout::host_members(int host) const {
  std::vector<int> ranks;
  ranks.reserve(ranks_on(host).size());
  for (const int rank : ranks_on(host)) ranks.push_back(members_[static_cast<std::size_t>(rank)]);
  return ranks;
}

int Layout::find_host(int topology_host) const {
  const auto found = std::find(topology_hosts_.begin(), topology_hosts_.end(), topology_host);
  return found == topology_hosts_.end() ? -1 : static_cast<int>(found - topology_hosts_.begin());
}

}  // namespace perseus::hierarchy
