// The memory that this process may still take before the kernel's out-of-memory killer ends processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

namespace perseus {

// The machine's available memory, and the limits of the memory cgroups that this process is in: its own and all those
// above it, of version 1 or 2, as containers and Slurm make them.
class MemoryLimits {
 public:
  // `root`: where /proc and /sys are; tests have their own.
  explicit MemoryLimits(const std::filesystem::path& root = "/");

  // The least that any of them leaves now, in bytes. A cgroup's page cache counts as free where the kernel can drop it.
  std::size_t left() const;

 private:
  struct Group {
    std::filesystem::path limit, used, statistics;
    const char* droppable;  // the row of `statistics` with page cache that can be dropped
  };

  std::filesystem::path meminfo_;
  std::vector<Group> groups_;
};

}  // namespace perseus
