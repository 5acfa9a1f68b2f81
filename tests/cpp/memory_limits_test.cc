// Tests memory limits as containers and Slurm set them, with simulated /proc and /sys.
#include "base/memory/memory_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace perseus::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kGiB = std::size_t{1} << 30;

class MemoryLimit : public ::testing::Test {
 protected:
  void SetUp() override { write("proc/meminfo", "MemTotal: 99 kB\nMemAvailable:   67108864 kB\n"); }  // 64 GiB
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void second_version(const std::string& group, const std::string& limit, std::size_t used,
                      std::size_t cache = 0) const {
    write("sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    write("sys/fs/cgroup" + group + "/memory.current", std::to_string(used) + "\n");
    write("sys/fs/cgroup" + group + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cache) + "\n");
  }
  std::size_t left() const { return MemoryLimits(root_).left(); }

  fs::path root_ = fs::temp_directory_path() / ("perseus_limits_" + std::to_string(getpid()));
};

const std::string kSecondVersion = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

TEST_F(MemoryLimit, WithoutCgroupsTheMachineCounts) { EXPECT_EQ(left(), 64 * kGiB); }

// Slurm limits the job's cgroup, not that of the task.
TEST_F(MemoryLimit, TheSmallestLimitOfAllCgroupsCounts) {
  write("proc/self/cgroup", "0::/system.slice/job_7/step_0/task_1\n");
  write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + kSecondVersion);
  second_version("/system.slice/job_7/step_0/task_1", "max", kGiB);
  second_version("/system.slice/job_7/step_0", std::to_string(32 * kGiB), kGiB);
  second_version("/system.slice/job_7", std::to_string(8 * kGiB), 3 * kGiB);
  second_version("/system.slice", "max", 9 * kGiB);
  EXPECT_EQ(left(), 5 * kGiB);
}

TEST_F(MemoryLimit, DroppableCacheCountsAsFree) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/self/mountinfo", kSecondVersion);
  second_version("", std::to_string(8 * kGiB), 7 * kGiB, 4 * kGiB);
  EXPECT_EQ(left(), 5 * kGiB);
  second_version("", std::to_string(8 * kGiB), 9 * kGiB);
  EXPECT_EQ(left(), 0U);
}

// A container sees a part of the hierarchy, and its own cgroup is at the mount point.
TEST_F(MemoryLimit, AMountMayHaveAPartOfTheHierarchy) {
  write("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  second_version("", std::to_string(4 * kGiB), kGiB);
  second_version("/inner", std::to_string(2 * kGiB), kGiB / 2);
  for (const auto* group : {"0::/docker/abc\n", "0::/../elsewhere\n"}) {
    write("proc/self/cgroup", group);
    EXPECT_EQ(left(), 3 * kGiB) << group;
  }
  write("proc/self/cgroup", "0::/docker/abc/inner\n");
  EXPECT_EQ(left(), 3 * kGiB / 2);
}

TEST_F(MemoryLimit, CgroupVersion1IsSupported) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/slurm\n5:memory:/slurm/uid_0/job_7\n0::/ignored\n");
  write("proc/self/mountinfo",
        "40 23 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 23 0:34 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  const std::string folder = "sys/fs/cgroup/memory/slurm/uid_0";
  write(folder + "/job_7/memory.limit_in_bytes", "9223372036854771712\n");
  write(folder + "/job_7/memory.usage_in_bytes", std::to_string(kGiB));
  write(folder + "/memory.limit_in_bytes", std::to_string(6 * kGiB));
  write(folder + "/memory.usage_in_bytes", std::to_string(2 * kGiB));
  write(folder + "/memory.stat", "total_inactive_file " + std::to_string(kGiB) + "\n");
  EXPECT_EQ(left(), 5 * kGiB);
}

// Reading the statistics is slow, so a small part of the remainder is allowed without it.
TEST_F(MemoryLimit, SmallAllocationsNeedNoReadingForAShortTime) {
  using namespace std::chrono_literals;
  MemoryLimits limits(root_);
  MemoryLimits::Clock::time_point now{10s};
  ASSERT_TRUE(limits.allow(kGiB, now));
  write("proc/meminfo", "MemAvailable: 1024 kB\n");
  EXPECT_TRUE(limits.allow(kGiB / 2, now)) << "a 64th of 63 GiB is 0.98 GiB";
  EXPECT_TRUE(limits.allow(kGiB / 4, now + 99ms));
  EXPECT_FALSE(limits.allow(kGiB / 2, now)) << "more than a 64th of the remainder";
  EXPECT_TRUE(limits.allow(1 << 20, now)) << "the statistics are read again";
  EXPECT_FALSE(limits.allow((1 << 20) + 1, now));
}

TEST_F(MemoryLimit, IsReadAgainAfterAShortTime) {
  using namespace std::chrono_literals;
  MemoryLimits limits(root_);
  MemoryLimits::Clock::time_point now{10s};
  ASSERT_TRUE(limits.allow(kGiB, now));
  write("proc/meminfo", "MemAvailable: 1024 kB\n");
  EXPECT_FALSE(limits.allow(kGiB / 2, now + 100ms));
}

TEST_F(MemoryLimit, TheFirstAllocationNeedsAReading) {
  write("proc/meminfo", "MemAvailable: 1024 kB\n");
  EXPECT_FALSE(MemoryLimits(root_).allow(2 << 20));
}

}  // namespace
}  // namespace perseus::testing
