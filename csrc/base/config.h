// Every environment variable the core reads: its name, Horovod's name for it, its default and what it does.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"

namespace perseus {

struct Setting {
  std::string_view name;
  std::string_view horovod_name;  // understood as well; empty where Horovod has none
  std::string_view default_value;
  std::string_view help;
};

// The table behind docs/environment.md, in the order of the page.
std::span<const Setting> settings();

// A variable of Horovod that changes nothing here.
struct Unused {
  std::string_view horovod_name;
  std::string_view why;
  bool is_given_anyway = false;  // what it asks for is so without it: nobody needs to be told
};

std::span<const Unused> unused_settings();

// The values of one session. Read once, when it starts.
struct Config {
  // `overrides` (name → value) win over the environment. Throws Error(invalid_argument) on a malformed value.
  static Config read(const std::map<std::string, std::string>& overrides = {});

  std::int64_t fusion_threshold_bytes = 0;
  std::int64_t cache_capacity = 0;
  std::chrono::microseconds linger{0};
  std::chrono::microseconds spin{0};
  std::chrono::milliseconds stall_warning{0};   // 0: never
  std::chrono::milliseconds stall_shutdown{0};  // 0: never
  std::chrono::seconds start_timeout{0};
  std::chrono::seconds heartbeat_timeout{0};  // 0: never
  std::string network_interfaces;             // empty: any
  std::int64_t arena_bytes = 0;               // 0: chosen from the machine's memory
  std::int64_t chunk_bytes = 0;               // 0: chosen from the caches
  std::string transport;                      // "", "shm", "mpi", "oneccl"
  int streams = 1;                            // between hosts, at most
  bool tunes_streams = false;
  int nan_check = 0;                 // 0: none, 1: warn, 2: an error
  std::optional<DType> wire;         // that floats travel in between hosts where the request names none
  std::int64_t wire_from_bytes = 0;  // of tensors so large
  bool flat_allreduce = false;       // without regard to which ranks share a host
  std::string mpi_library;
  std::string oneccl_library;
  std::string nccl_library;
  bool nccl_registers = false;
  std::string timeline;  // file, or empty
  bool timeline_marks_cycles = false;
  bool autotune = false;
  std::string autotune_log;  // file, or empty
  std::int64_t autotune_warmup_samples = 0;
  std::int64_t autotune_steps_per_sample = 0;
  // Set by the user, and so not to be tuned.
  bool fusion_threshold_is_given = false, linger_is_given = false, chunk_is_given = false, streams_are_given = false;
  LogLevel log_level = LogLevel::warning;
  bool log_time = false;
  bool mpi_threads = true;
  std::vector<int> thread_affinity;  // by local rank, the core of its lanes' threads; empty: any
  std::vector<std::string> remarks;  // variables that are set and change nothing, and why
};

// The environment as the bootstraps see it: launchers' variables (PERSEUS_RANK, OMPI_…, PMI_…) are not settings.
std::optional<std::string> environment(std::string_view name);

}  // namespace perseus
