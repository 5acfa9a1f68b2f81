#include "hierarchy_world.h"

#include <array>
#include <utility>

#include "transport/hierarchy/fabric.h"

namespace perseus::testing {

std::vector<std::unique_ptr<Fabric>> make_hosts(const std::vector<int>& hosts,
                                                std::vector<std::unique_ptr<Fabric>> local,
                                                std::vector<std::unique_ptr<Fabric>> cross) {
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    fabrics.push_back(
        hierarchy::make_cluster_fabric(Topology(static_cast<int>(r), hosts), std::move(local[r]), std::move(cross[r])));
  }
  return fabrics;
}

std::vector<int> crossed_hosts(int size) {
  constexpr std::array kHosts = {0, 1, 1, 0, 0};
  return {kHosts.begin(), kHosts.begin() + size};
}

}  // namespace perseus::testing
