#include "bootstrap/topology.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <utility>

namespace perseus {

namespace {

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string this_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  struct stat network{};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return first_line_of("/proc/sys/kernel/random/boot_id") + ' ' + std::to_string(network.st_ino) + ' ' + name.data();
}

}  // namespace

Topology::Topology(int rank, std::vector<int> hosts, std::vector<std::string> names)
    : rank_(rank), hosts_(std::move(hosts)), names_(std::move(names)) {
  const auto count = hosts_.empty() ? 0 : *std::max_element(hosts_.begin(), hosts_.end()) + 1;
  members_.resize(static_cast<std::size_t>(count));
  for (int r = 0; r < size(); ++r) members_[static_cast<std::size_t>(host_of(r))].push_back(r);
  std::erase(members_, std::vector<int>{});
  std::sort(members_.begin(), members_.end());
  for (std::size_t h = 0; h < members_.size(); ++h) {
    for (const int r : members_[h]) hosts_[static_cast<std::size_t>(r)] = static_cast<int>(h);
  }

  const auto& mine = local_ranks();
  local_rank_ = static_cast<int>(std::find(mine.begin(), mine.end(), rank_) - mine.begin());
  const auto has_my_local_rank = [&](const std::vector<int>& ranks) {
    return ranks.size() > static_cast<std::size_t>(local_rank_);
  };
  cross_size_ = static_cast<int>(std::count_if(members_.begin(), members_.end(), has_my_local_rank));
  cross_rank_ = static_cast<int>(std::count_if(members_.begin(), members_.begin() + host_of(rank_), has_my_local_rank));
  homogeneous_ = std::all_of(members_.begin(), members_.end(),
                             [&](const std::vector<int>& ranks) { return ranks.size() == mine.size(); });
}

Topology Topology::discover(Bootstrap& bootstrap) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  std::vector<std::string> names;
  for (const auto& host : bootstrap.allgather(this_host())) {
    hosts.push_back(numbers.try_emplace(host, static_cast<int>(numbers.size())).first->second);
    names.push_back(host.substr(host.rfind(' ') + 1));
  }
  return {bootstrap.rank(), std::move(hosts), std::move(names)};
}

}  // namespace perseus
