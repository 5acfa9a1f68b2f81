// Defines every environment variable that the core reads: name, Horovod's name, default and effect.
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
  std::string_view horovod_name;  // also accepted; empty if Horovod has no such variable
  std::string_view default_value;
  std::string_view help;
};

// Returns all settings in the order of docs/environment.md, which is made from them.
std::span<const Setting> settings();

// A variable of Horovod that has no effect here.
struct Unused {
  std::string_view horovod_name;
  std::string_view why;
  bool is_given_anyway = false;  // its effect is the default here, so that no warning is needed
};

std::span<const Unused> unused_settings();

// The settings of one session, read once when it starts.
struct Config {
  // Reads the settings. `overrides` (name → value) take precedence over the environment. Throws Error(invalid_argument)
  // if a value is malformed.
  static Config read(const std::map<std::string, std::string>& overrides = {});

  std::int64_t fusion_threshold_bytes = 0;
  std::int64_t cache_capacity = 0;
  std::chrono::microseconds batching_delay{0};
  std::chrono::microseconds spin{0};
  std::chrono::milliseconds stall_warning{0};        // 0: never
  std::chrono::milliseconds first_stall_warning{0};  // at most stall_warning
  std::chrono::milliseconds stall_shutdown{0};       // 0: never
  std::chrono::seconds start_timeout{0};
  std::chrono::seconds heartbeat_timeout{0};  // 0: never
  std::string network_interfaces;             // empty: any
  std::int64_t arena_bytes = 0;               // 0: chosen from the machine's memory
  std::int64_t chunk_bytes = 0;               // 0: chosen from the caches
  std::string transport;                      // "", "shm", "mpi", "oneccl"
  std::string host_transport;                 // "", "mpi", "ucx"
  std::string ucx_library;
  int streams = 1;  // between hosts, at most
  bool tunes_streams = false;
  int nan_check = 0;                 // 0: none, 1: warn, 2: an error
  std::optional<DType> wire_dtype;   // wire dtype of floats between hosts, unless the request names one
  std::int64_t wire_from_bytes = 0;  // least size of a tensor to which wire_dtype applies
  bool flat_allreduce = false;       // all ranks reduce over MPI, regardless of hosts
  std::string mpi_library;
  std::string oneccl_library;
  std::string nccl_library;
  bool nccl_registers = false;
  int nccl_streams = 1;
  std::string timeline;  // file, or empty
  bool timeline_marks_cycles = false;
  bool autotune = false;
  std::string autotune_log;  // file, or empty
  std::int64_t autotune_warmup_samples = 0;
  std::int64_t autotune_steps_per_sample = 0;
  // True for settings that the user has set; the autotuner does not change them.
  bool fusion_threshold_is_given = false, batching_delay_is_given = false, chunk_is_given = false,
       streams_are_given = false;
  LogLevel log_level = LogLevel::warning;
  bool log_time = false;
  bool mpi_threads = true;
  std::vector<int> thread_affinity;  // by local rank: the core of the rank's communication threads; empty: any
  std::vector<std::string> remarks;  // warnings about variables that are set but have no effect
};

// Returns a variable of the environment. The bootstraps read launchers' variables (PERSEUS_RANK, OMPI_…, PMI_…) by it,
// because these are not settings.
std::optional<std::string> environment(std::string_view name);

}  // namespace perseus
