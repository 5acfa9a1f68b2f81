// Computes the memory that this process may still allocate before the kernel's out-of-memory killer ends processes.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <vector>

namespace perseus {

// The machine's available memory, and the limits of the memory cgroups that this process is in: its own and all those
// above it, of version 1 or 2, as containers and Slurm make them.
class MemoryLimits {
 public:
  using Clock = std::chrono::steady_clock;

  // `root` is the folder that contains proc and sys; tests use their own.
  explicit MemoryLimits(const std::filesystem::path& root = "/");

  // Returns the smallest remainder of these limits, in bytes. Page cache of a cgroup that the kernel can drop counts as
  // free.
  std::size_t left() const;

  // Returns true if `bytes` more may be allocated, and counts them as allocated. Reading the limits takes some 0.1 ms,
  // because the kernel sums up the statistics. After a reading, a small part of the remainder is therefore allowed for
  // a short time without another one. The result is false only after a new reading.
  bool allow(std::size_t bytes, Clock::time_point now = Clock::now());

 private:
  struct Group {
    std::filesystem::path limit, used, statistics;
    const char* droppable;  // the row of `statistics` with page cache that can be dropped
  };

  std::filesystem::path meminfo_;
  std::vector<Group> groups_;
  std::size_t allowance_ = 0;  // bytes that are allowed without a new reading
  Clock::time_point read_at_{};
};

}  // namespace perseus
