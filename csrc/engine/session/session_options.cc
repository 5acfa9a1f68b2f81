#include "engine/session/session_options.h"

#include <cstddef>

namespace perseus {

FabricOptions fabric_options(const Config& config, const BootstrapOptions& bootstrap) {
  FabricOptions options;
  if (config.transport == "shm") options.local_transport = LocalTransport::shm;
  if (config.transport == "mpi") options.local_transport = LocalTransport::mpi;
  if (config.transport == "oneccl") options.local_transport = LocalTransport::oneccl;
  if (config.host_transport == "mpi") options.host_transport = HostTransport::mpi;
  if (config.host_transport == "ucx") options.host_transport = HostTransport::ucx;
  options.ucx_library = config.ucx_library;
  options.network_interfaces = config.network_interfaces;
  options.streams = config.streams;
  options.watches_hosts = config.heartbeat_timeout.count() > 0;
  options.oneccl_library = config.oneccl_library;
  options.python_prefix = bootstrap.environment.python_prefix;
  options.arena_bytes = static_cast<std::size_t>(config.arena_bytes);
  options.chunk_bytes = static_cast<std::size_t>(config.chunk_bytes);
  options.tunable = config.autotune;
  options.spin = config.spin;
  options.start_timeout = config.start_timeout;
  if (bootstrap.rendezvous) options.cancel_fd = bootstrap.rendezvous->cancel_fd;
  options.flat_allreduce = config.flat_allreduce;
  return options;
}

EngineOptions engine_options(const Config& config, int local_rank) {
  EngineOptions options;
  options.negotiator = {config.cache_capacity,
                        {config.stall_warning, config.stall_shutdown, config.first_stall_warning}};
  options.fusion_threshold_bytes = config.fusion_threshold_bytes;
  options.batching_delay = config.batching_delay;
  options.spin = config.spin;
  options.nan_check = config.nan_check == 0 ? NanCheck::off : config.nan_check == 1 ? NanCheck::warn : NanCheck::fail;
  const auto place = static_cast<std::size_t>(local_rank);
  if (place < config.thread_affinity.size()) options.core = config.thread_affinity[place];
  return options;
}

AutotuneOptions autotune_options(const Config& config) {
  return {.warmup_samples = config.autotune_warmup_samples,
          .steps_per_sample = config.autotune_steps_per_sample,
          .log = config.autotune_log,
          .fixed = {!config.autotune || config.fusion_threshold_is_given,
                    !config.autotune || config.batching_delay_is_given, !config.autotune || config.chunk_is_given,
                    !config.tunes_streams},
          .is_asked_for = config.autotune};
}

}  // namespace perseus
