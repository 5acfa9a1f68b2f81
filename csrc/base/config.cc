#include "base/config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace perseus {

namespace {

constexpr std::array kSettings = {
    Setting{"PERSEUS_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD", "67108864",
            "Most bytes of small tensors that are fused into one batch."},
    Setting{"PERSEUS_ALLREDUCE_FUSION", "", "",
            "The fusion threshold in MiB (AIACC-Training's name), used if PERSEUS_FUSION_THRESHOLD is not set."},
    Setting{
        "PERSEUS_ALLREDUCE_STREAMS", "", "4",
        "Most connections over which the data between two hosts is spread. UCX, MPICH over TCP and Intel MPI can use "
        "several."},
    Setting{
        "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING", "", "0",
        "1: use all these streams from the first step. 0: also try fewer streams in the first steps of a training."},
    Setting{
        "PERSEUS_ALLREDUCE_DTYPE", "", "1",
        "Wire dtype of float32 and float64 between hosts, in allreduces without compression. Within a host they stay "
        "exact. 1: their own type, 0: float16, 2: float16 for tensors of 64 KiB or more, 3: bfloat16."},
    Setting{"PERSEUS_ALLREDUCE_MODE", "", "1",
            "1: the ranks of a host reduce in shared memory before they send anything to other hosts. 0: every rank "
            "exchanges data with all others over MPI."},
    Setting{
        "PERSEUS_ALLREDUCE_NANCHECK", "", "0",
        "1: warn about the first tensor and rank with a NaN or an infinity in an allreduce. 2: fail that tensor on all "
        "ranks. Either reads all data twice more."},
    Setting{
        "PERSEUS_CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY", "16384",
        "Most requests in the response cache; a cached request costs only a bit or two in later negotiations. 0 turns "
        "the cache off."},
    Setting{
        "PERSEUS_LINGER_US", "", "20",
        "Batching delay: microseconds for which a small asynchronous request first waits for more requests of the same "
        "burst. The delay grows while more requests arrive. 0 sends each request at once."},
    Setting{"PERSEUS_SPIN_US", "", "30", "Microseconds for which a waiting thread polls before it sleeps."},
    Setting{"PERSEUS_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS", "60",
            "Seconds after which the library warns about a tensor that some ranks have not submitted, or in which some "
            "ranks make no progress. 0: never."},
    Setting{
        "PERSEUS_STALL_CHECK_FIRST_SECONDS", "", "",
        "Seconds after which the first of these warnings about a tensor that some ranks have not submitted comes, if "
        "that is earlier. Empty: as late as later ones. `perseusrun` in a terminal sets 10."},
    Setting{"PERSEUS_STALL_CHECK_DISABLE", "HOROVOD_STALL_CHECK_DISABLE", "0", "1: do not warn about stalled tensors."},
    Setting{"PERSEUS_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0",
            "Seconds after which a stalled tensor fails on all ranks. 0: never."},
    Setting{"PERSEUS_START_TIMEOUT", "HOROVOD_START_TIMEOUT", "60", "Seconds to wait until all ranks have started."},
    Setting{"PERSEUS_HEARTBEAT_TIMEOUT", "", "30",
            "Seconds without an answer after which another host counts as lost (at least 3). 0: do not watch hosts; "
            "then only MPI can detect their loss, and UCX cannot be used. The value of rank 0 counts."},
    Setting{"PERSEUS_NETWORK_INTERFACES", "", "",
            "Network interfaces, for example eth0,ib0, at whose addresses the first rank of each host and `perseusrun` "
            "listen for the "
            "heartbeat. Empty: all interfaces but loopback. MPI has settings of its own; `perseusrun "
            "--network-interfaces` sets all of them."},
    Setting{
        "PERSEUS_ARENA_BYTES", "", "0",
        "Address space of the arena, the memory shared with the ranks of this host. Pages are allocated when they are "
        "used. 0: computed from the machine's memory."},
    Setting{"PERSEUS_CHUNK_BYTES", "", "0",
            "Bytes of a chunk when private memory is pipelined. 0: computed from the cache sizes."},
    Setting{
        "PERSEUS_CPU_TRANSPORT", "HOROVOD_CPU_OPERATIONS", "",
        "shm or mpi: use only this transport between the ranks of a host; mpi needs an mpirun. oneccl (Horovod's ccl): "
        "use oneCCL for the collectives of all ranks. Empty or gloo: shm."},
    Setting{
        "PERSEUS_HOST_TRANSPORT", "", "",
        "ucx or mpi: the transport between hosts. ucx needs no MPI and no mpirun. Empty: mpi if an mpirun or srun has "
        "started the job, otherwise ucx."},
    Setting{"PERSEUS_UCX_LIBRARY", "", "", "Path of the libucp.so.0 (UCX) to open instead of the one that is found."},
    Setting{"PERSEUS_MPI_LIBRARY", "", "", "Path of the libmpi to open instead of the one that is found."},
    Setting{"PERSEUS_ONECCL_LIBRARY", "", "",
            "Path of the libccl.so.2 (oneCCL) to open instead of the one that is found."},
    Setting{"PERSEUS_NCCL_LIBRARY", "", "",
            "Path of the libnccl.so.2 (NCCL) to open instead of the one that is found."},
    Setting{
        "PERSEUS_NCCL_REGISTER", "", "0",
        "1: register gradient buckets on a GPU with NCCL (2.19 and later), which may then use them without a copy of "
        "its own. All ranks need the same value, and join() is refused."},
    Setting{
        "PERSEUS_NCCL_STREAMS", "", "1",
        "NCCL communicators of a process set on a GPU, each with a stream of its own. Collectives use them in turn, so "
        "this number of collectives may overlap."},
    Setting{
        "PERSEUS_TIMELINE", "HOROVOD_TIMELINE", "",
        "File for a Chrome trace of this job, written from init() on. For NAME.json rank 0 writes this file, rank 1 "
        "writes NAME.rank1.json, and so on. Empty or DYNAMIC: no trace until start_timeline() is called."},
    Setting{"PERSEUS_TIMELINE_MARK_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES", "0",
            "1: mark the start of each cycle of the engine that had work in the timeline."},
    Setting{"PERSEUS_MPI_THREADS_DISABLE", "HOROVOD_MPI_THREADS_DISABLE", "0",
            "1: do not request MPI_THREAD_MULTIPLE; make one MPI call at a time."},
    Setting{"PERSEUS_THREAD_AFFINITY", "HOROVOD_THREAD_AFFINITY", "",
            "Cores of the communication threads, by local rank: 0,4 for two ranks. Empty: any core."},
    Setting{
        "PERSEUS_AUTOTUNE", "HOROVOD_AUTOTUNE", "0",
        "1: try other values of PERSEUS_FUSION_THRESHOLD, PERSEUS_LINGER_US and PERSEUS_CHUNK_BYTES in the first steps "
        "of a training, and keep the fastest. Values from the environment are not changed."},
    Setting{"PERSEUS_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG", "", "CSV file to which rank 0 writes every sample."},
    Setting{"PERSEUS_AUTOTUNE_WARMUP_SAMPLES", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "3",
            "Number of first samples that do not count."},
    Setting{"PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "10",
            "Training steps per sample."},
    Setting{"PERSEUS_LOG_LEVEL", "HOROVOD_LOG_LEVEL", "warning",
            "Lowest level of the log: trace, debug, info, warning, error or off."},
    Setting{"PERSEUS_LOG_HIDE_TIME", "HOROVOD_LOG_HIDE_TIME", "1", "0: begin each line of the log with the time."},
};

constexpr std::array kUnused = {
    Unused{"HOROVOD_CYCLE_TIME",
           "There is no cycle that sleeps: the engine sends tensors when they are ready. See PERSEUS_LINGER_US."},
    Unused{"HOROVOD_CONTROLLER", "Ranks negotiate over the transport that connects them. See PERSEUS_CPU_TRANSPORT."},
    Unused{"HOROVOD_DYNAMIC_PROCESS_SETS", "Process sets can be added and removed at any time.", true},
    Unused{"HOROVOD_DISABLE_GROUP_FUSION", "A group is never fused with tensors outside of it.", true},
    Unused{"HOROVOD_HIERARCHICAL_ALLREDUCE", "In jobs on several hosts, ranks always reduce within their host first.",
           true},
    Unused{"HOROVOD_HIERARCHICAL_ALLGATHER", "Within a host, ranks always gather from shared memory.", true},
    Unused{"HOROVOD_TORUS_ALLREDUCE", "The transport chooses its own algorithm."},
    Unused{"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
           "The tuner measures one setting after the other and ends after the last one."},
    Unused{"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "The tuner measures one setting after the other."},
    Unused{"HOROVOD_ADASUM_MPI_CHUNK_SIZE", "Adasum uses the transports, which have chunk sizes of their own."},
    Unused{"HOROVOD_ELASTIC", "perseusrun sets it for the workers of an elastic job; setting it makes no job elastic.",
           true},
    Unused{"HOROVOD_NUM_NCCL_STREAMS",
           "The library uses one NCCL stream for each process set. See PERSEUS_NCCL_STREAMS."},
    Unused{"HOROVOD_BATCH_D2D_MEMCOPIES", "One kernel packs all tensors of a batch.", true},
    Unused{"HOROVOD_ENABLE_ASYNC_COMPLETION", "Waiting for device tensors never blocks the host thread.", true},
    Unused{"HOROVOD_DISABLE_NVTX_RANGES", "There are no NVTX ranges.", true},
    Unused{"HOROVOD_CCL_CACHE", "oneCCL manages its caches itself."},
    Unused{"HOROVOD_ENABLE_XLA_OPS", "Graphs that XLA compiles can always contain collectives."},
    Unused{"HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "There are no Spark estimators."},
};

constexpr double kMostBytes = 1LL << 48;      // the address space of a process
constexpr double kMostSeconds = 100'000'000;  // three years; a clock's duration cannot hold much more
constexpr double kMostMicroseconds = 1'000'000;
constexpr double kMostCacheEntries = 1LL << 18;    // the limit of ids in one control message (control/serialization.h)
constexpr double kMostHeartbeatSeconds = 300'000;  // the kernel's limit for the time between keepalive probes

// Returns values by name: overrides first, then the environment, then the table's default.
class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& overrides) : overrides_(overrides) {}

  std::optional<std::string> given(const Setting& setting) const {
    if (const auto found = overrides_.find(std::string(setting.name)); found != overrides_.end()) return found->second;
    if (auto value = environment(setting.name); value && !value->empty()) return value;
    if (setting.horovod_name.empty()) return std::nullopt;
    if (auto value = environment(setting.horovod_name); value && !value->empty()) return value;
    return std::nullopt;
  }

  static const Setting& row(std::string_view name) {
    for (const auto& setting : kSettings) {
      if (setting.name == name) return setting;
    }
    throw Error(ErrorKind::invalid_argument, "no setting is called " + std::string(name));
  }

  // The variable that the user has set: Horovod's name if the value comes from it.
  std::string name_given(std::string_view name) const {
    const auto& setting = row(name);
    const auto is_set = [](const std::optional<std::string>& value) { return value && !value->empty(); };
    const bool is_own = overrides_.contains(std::string(name)) || is_set(environment(name));
    if (is_own || setting.horovod_name.empty() || !is_set(environment(setting.horovod_name))) return std::string(name);
    return std::string(setting.horovod_name);
  }

  std::string text(std::string_view name) const {
    const auto& setting = row(name);
    return given(setting).value_or(std::string(setting.default_value));
  }

  // from_chars accepts the words for NaN and infinity, and no comparison with NaN is true.
  double number(std::string_view name, double most) const {
    const auto value = text(name);
    double result = 0;
    const auto* end = value.data() + value.size();
    if (const auto [stop, error] = std::from_chars(value.data(), end, result);
        error != std::errc() || stop != end || !(result >= 0)) {
      throw Error(ErrorKind::invalid_argument,
                  name_given(name) + "='" + value + "' is not a number of at least 0; unset it or correct it");
    }
    if (result > most) {
      throw Error(ErrorKind::invalid_argument, name_given(name) + "='" + value + "' is more than " +
                                                   std::to_string(static_cast<std::int64_t>(most)) +
                                                   ", the most there can be; unset it or correct it");
    }
    return result;
  }

  std::int64_t integer(std::string_view name, double most = kMostBytes) const {
    return static_cast<std::int64_t>(number(name, most));
  }
  double seconds(std::string_view name) const { return number(name, kMostSeconds); }
  // Returns an integer from 0 to `most`.
  int choice(std::string_view name, int most) const {
    const double value = number(name, kMostBytes);
    for (int choice = 0; choice <= most; ++choice) {
      if (value == choice) return choice;
    }
    throw Error(ErrorKind::invalid_argument, name_given(name) + "='" + text(name) + "' is none of 0 to " +
                                                 std::to_string(most) + "; unset it or correct it");
  }
  bool is_given(std::string_view name) const { return given(row(name)).has_value(); }

 private:
  const std::map<std::string, std::string>& overrides_;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// Parses a list of cores by local rank, such as "0,4".
std::vector<int> cores(const std::string& name, const std::string& text) {
  std::vector<int> list;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    int core = -1;
    const auto [stop, error] = std::from_chars(at, text.data() + text.size(), core);
    if (error != std::errc() || core < 0 || (*stop != ',' && *stop != '\0')) {
      throw Error(ErrorKind::invalid_argument,
                  name + "='" + text + "' is no list of cores such as 0,4; unset it or correct it");
    }
    list.push_back(core);
    at = stop + 1;
  }
  return list;
}

std::vector<std::string> remarks_on_unused() {
  std::vector<std::string> texts;
  for (const auto& unused : kUnused) {
    const auto value = environment(unused.horovod_name);
    if (unused.is_given_anyway || !value || value->empty()) continue;
    texts.push_back(std::string(unused.horovod_name) + " has no effect: " + std::string(unused.why));
  }
  return texts;
}

std::string transport_name(const std::string& name, std::string value) {
  for (auto& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (value.empty() || value == "shm" || value == "mpi" || value == "oneccl") return value;
  if (value == "ccl") return "oneccl";
  if (value == "gloo") return "";  // in Horovod "without MPI", which is the default here within a host
  throw Error(ErrorKind::invalid_argument,
              name + "='" + value + "' is not known; use shm, mpi, oneccl or leave it empty");
}

std::string host_transport_name(const std::string& name, const std::string& value) {
  if (value.empty() || value == "ucx" || value == "mpi") return value;
  throw Error(ErrorKind::invalid_argument, name + "='" + value + "' is not known; use ucx, mpi or leave it empty");
}

LogLevel log_level_named(const std::string& name, const std::string& text) {
  if (text.empty()) return LogLevel::warning;
  if (const auto level = parse_log_level(text)) return *level;
  throw Error(ErrorKind::invalid_argument, name + "='" + text +
                                               "' is not known; use trace, debug, info, warning, error (fatal is the "
                                               "same) or off");
}

}  // namespace

std::span<const Setting> settings() { return kSettings; }
std::span<const Unused> unused_settings() { return kUnused; }

std::optional<std::string> environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Config Config::read(const std::map<std::string, std::string>& overrides) {
  const Reader from(overrides);
  Config config;
  config.fusion_threshold_bytes = from.integer("PERSEUS_FUSION_THRESHOLD");
  if (!from.is_given("PERSEUS_FUSION_THRESHOLD") && from.is_given("PERSEUS_ALLREDUCE_FUSION")) {
    config.fusion_threshold_bytes = from.integer("PERSEUS_ALLREDUCE_FUSION", kMostBytes / (1 << 20)) << 20;
  }
  config.cache_capacity = from.integer("PERSEUS_CACHE_CAPACITY", kMostCacheEntries);
  config.batching_delay = std::chrono::microseconds(from.integer("PERSEUS_LINGER_US", kMostMicroseconds));
  config.spin = std::chrono::microseconds(from.integer("PERSEUS_SPIN_US", kMostMicroseconds));
  const bool quiet = from.integer("PERSEUS_STALL_CHECK_DISABLE") != 0;
  config.stall_warning =
      quiet ? std::chrono::milliseconds(0) : milliseconds(from.seconds("PERSEUS_STALL_CHECK_TIME_SECONDS"));
  config.first_stall_warning = config.stall_warning;
  if (from.is_given("PERSEUS_STALL_CHECK_FIRST_SECONDS")) {
    config.first_stall_warning =
        std::min(config.stall_warning, milliseconds(from.seconds("PERSEUS_STALL_CHECK_FIRST_SECONDS")));
  }
  config.stall_shutdown = milliseconds(from.seconds("PERSEUS_STALL_SHUTDOWN_TIME_SECONDS"));
  config.start_timeout = std::chrono::seconds(from.integer("PERSEUS_START_TIMEOUT", kMostSeconds));
  config.heartbeat_timeout = std::chrono::seconds(from.integer("PERSEUS_HEARTBEAT_TIMEOUT", kMostHeartbeatSeconds));
  config.network_interfaces = from.text("PERSEUS_NETWORK_INTERFACES");
  config.arena_bytes = from.integer("PERSEUS_ARENA_BYTES");
  config.chunk_bytes = from.integer("PERSEUS_CHUNK_BYTES");
  config.streams = static_cast<int>(std::clamp<std::int64_t>(from.integer("PERSEUS_ALLREDUCE_STREAMS"), 1, 64));
  config.streams_are_given = from.is_given("PERSEUS_ALLREDUCE_STREAMS");
  config.tunes_streams = from.integer("PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING") == 0;
  const auto dtype = from.choice("PERSEUS_ALLREDUCE_DTYPE", 3);
  config.nan_check = from.choice("PERSEUS_ALLREDUCE_NANCHECK", 2);
  if (dtype != 1) config.wire_dtype = dtype == 3 ? DType::bfloat16 : DType::float16;
  if (dtype == 2) config.wire_from_bytes = 64 << 10;
  config.flat_allreduce = from.choice("PERSEUS_ALLREDUCE_MODE", 1) == 0;
  config.transport = transport_name(from.name_given("PERSEUS_CPU_TRANSPORT"), from.text("PERSEUS_CPU_TRANSPORT"));
  config.host_transport = host_transport_name("PERSEUS_HOST_TRANSPORT", from.text("PERSEUS_HOST_TRANSPORT"));
  config.ucx_library = from.text("PERSEUS_UCX_LIBRARY");
  config.mpi_library = from.text("PERSEUS_MPI_LIBRARY");
  config.oneccl_library = from.text("PERSEUS_ONECCL_LIBRARY");
  config.nccl_library = from.text("PERSEUS_NCCL_LIBRARY");
  config.nccl_registers = from.integer("PERSEUS_NCCL_REGISTER") != 0;
  config.nccl_streams = static_cast<int>(std::clamp<std::int64_t>(from.integer("PERSEUS_NCCL_STREAMS"), 1, 64));
  config.timeline = from.text("PERSEUS_TIMELINE");
  if (config.timeline == "DYNAMIC") config.timeline.clear();
  config.timeline_marks_cycles = from.integer("PERSEUS_TIMELINE_MARK_CYCLES") != 0;
  config.mpi_threads = from.integer("PERSEUS_MPI_THREADS_DISABLE") == 0;
  config.thread_affinity = cores(from.name_given("PERSEUS_THREAD_AFFINITY"), from.text("PERSEUS_THREAD_AFFINITY"));
  config.autotune = from.integer("PERSEUS_AUTOTUNE") != 0;
  config.autotune_log = from.text("PERSEUS_AUTOTUNE_LOG");
  config.autotune_warmup_samples = from.integer("PERSEUS_AUTOTUNE_WARMUP_SAMPLES");
  config.autotune_steps_per_sample = std::max<std::int64_t>(1, from.integer("PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE"));
  config.fusion_threshold_is_given =
      from.is_given("PERSEUS_FUSION_THRESHOLD") || from.is_given("PERSEUS_ALLREDUCE_FUSION");
  config.batching_delay_is_given = from.is_given("PERSEUS_LINGER_US");
  config.chunk_is_given = config.chunk_bytes != 0;
  config.log_level = log_level_named(from.name_given("PERSEUS_LOG_LEVEL"), from.text("PERSEUS_LOG_LEVEL"));
  config.log_time = from.integer("PERSEUS_LOG_HIDE_TIME") == 0;
  config.remarks = remarks_on_unused();
  return config;
}

}  // namespace perseus
