#include "base/memory/memory_limits.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace perseus {

namespace {

namespace fs = std::filesystem;

// Returns the file's first number, or `otherwise` if it has none, such as "max".
std::size_t number_in(const fs::path& file, std::size_t otherwise) {
  std::ifstream stream(file);
  std::size_t value = 0;
  return stream >> value ? value : otherwise;
}

// Returns the number after a key, as in "MemAvailable:    24000000 kB" or "inactive_file 4096".
std::size_t row_of(const fs::path& file, const std::string& key, std::size_t otherwise) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    std::size_t value = 0;
    if (words >> word && word == key && words >> value) return value;
  }
  return otherwise;
}

bool has_item(const std::string& list, const std::string& item) {
  std::istringstream items(list);
  for (std::string each; std::getline(items, each, ',');) {
    if (each == item) return true;
  }
  return false;
}

// A mounted hierarchy of cgroups. `top` is the cgroup at the mount point; in a container it may not be "/".
struct Mount {
  fs::path place;
  fs::path top;
};

// Parses a line of mountinfo such as "36 35 0:29 /top /place rw,… shared:9 - cgroup2 source options".
bool read_mount(const std::string& line, bool second_version, Mount& mount) {
  std::istringstream words(line);
  std::string skipped, top, place, type, source, options;
  words >> skipped >> skipped >> skipped >> top >> place;
  while (words >> skipped && skipped != "-") {
  }
  words >> type >> source >> options;
  if (second_version ? type != "cgroup2" : type != "cgroup" || !has_item(options, "memory")) return false;
  mount = {place, top};
  return true;
}

// Returns the folders of a cgroup and of all visible cgroups above it.
std::vector<fs::path> folders_of(const fs::path& root, const Mount& mount, const fs::path& group) {
  const auto place = root / mount.place.relative_path();
  auto below = group.lexically_relative(mount.top);
  // The group is outside the mounted part; the mounted cgroups limit this process even so.
  if (below.empty() || *below.begin() == "..") below = ".";
  std::vector<fs::path> folders;
  for (auto folder = (place / below).lexically_normal();; folder = folder.parent_path()) {
    if (!folder.has_filename()) folder = folder.parent_path();
    folders.push_back(folder);
    if (folder == place || !folder.has_relative_path()) return folders;
  }
}

}  // namespace

MemoryLimits::MemoryLimits(const fs::path& root) : meminfo_(root / "proc/meminfo") {
  // A line is "0::/user/job" in version 2 and "5:memory:/user/job" in version 1.
  std::ifstream memberships(root / "proc/self/cgroup");
  for (std::string line; std::getline(memberships, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const bool second_version = controllers.empty();
    if (!second_version && !has_item(controllers, "memory")) continue;
    std::ifstream mounts(root / "proc/self/mountinfo");
    Mount mount;
    for (std::string entry; std::getline(mounts, entry);) {
      if (!read_mount(entry, second_version, mount)) continue;
      for (const auto& folder : folders_of(root, mount, line.substr(second + 1))) {
        groups_.push_back(second_version ? Group{folder / "memory.max", folder / "memory.current",
                                                 folder / "memory.stat", "inactive_file"}
                                         : Group{folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes",
                                                 folder / "memory.stat", "total_inactive_file"});
      }
      break;
    }
  }
}

std::size_t MemoryLimits::left() const {
  constexpr std::size_t kUnknown = SIZE_MAX;
  const auto kilobytes = row_of(meminfo_, "MemAvailable:", kUnknown);
  auto least = kilobytes == kUnknown ? kUnknown : kilobytes * 1024;
  for (const auto& group : groups_) {
    const auto limit = number_in(group.limit, kUnknown);
    if (limit == kUnknown) continue;
    const auto used = number_in(group.used, 0);
    const auto droppable = std::min(used, row_of(group.statistics, group.droppable, 0));
    const auto taken = used - droppable;
    least = std::min(least, limit > taken ? limit - taken : 0);
  }
  return least;
}

bool MemoryLimits::allow(std::size_t bytes, Clock::time_point now) {
  constexpr std::chrono::milliseconds kShortTime{100};
  constexpr std::size_t kSmallPart = 64;
  if (bytes <= allowance_ && now - read_at_ < kShortTime) {
    allowance_ -= bytes;
    return true;
  }
  const auto all = left();
  read_at_ = now;
  allowance_ = 0;
  if (bytes > all) return false;
  allowance_ = (all - bytes) / kSmallPart;
  return true;
}

}  // namespace perseus
