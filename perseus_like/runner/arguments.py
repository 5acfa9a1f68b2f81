"""Horovod's object of launcher options, as options of perseusrun."""

from __future__ import annotations

from typing import Any

# horovodrun's options, by the attribute that its parser stores them in.
_ATTRIBUTES = [
    "check_build",
    "ssh_port",
    "ssh_identity_file",
    "disable_cache",
    "start_timeout",
    "nic",
    "output_filename",
    "verbose",
    "command",
    "run_func",
    "config_file",
    "nics",
    "executable",
    "fusion_threshold_mb",
    "cycle_time_ms",
    "cache_capacity",
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "torus_allreduce",
    "autotune",
    "autotune_log_file",
    "autotune_warmup_samples",
    "autotune_steps_per_sample",
    "autotune_bayes_opt_max_samples",
    "autotune_gaussian_process_noise",
    "min_num_proc",
    "max_num_proc",
    "slots",
    "elastic_timeout",
    "reset_limit",
    "cooldown_range",
    "timeline_filename",
    "timeline_mark_cycles",
    "no_stall_check",
    "stall_check_warning_time_seconds",
    "stall_check_shutdown_time_seconds",
    "mpi_threads_disable",
    "mpi_args",
    "tcp_flag",
    "binding_args",
    "num_nccl_streams",
    "thread_affinity",
    "gloo_timeout_seconds",
    "log_level",
    "log_with_timestamp",
    "prefix_output_with_timestamp",
    "hosts",
    "hostfile",
    "host_discovery_script",
    "use_gloo",
    "use_mpi",
    "use_jsrun",
]

# Attributes that are no options, and options that are named otherwise.
_NO_OPTIONS = {"command", "run_func", "executable"}
_FLAGS = {
    "nic": "--network-interfaces",
    "nics": "--network-interfaces",
    "slots": "--slots-per-host",
    "cooldown_range": "--blacklist-cooldown-range",
    "tcp_flag": "--tcp",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "use_jsrun": "--jsrun",
}


class _HorovodArgs:
    """The options of a job as attributes. None: the option is not given. `command` is a list of words."""

    def __init__(self) -> None:
        self.num_proc = 1
        for name in _ATTRIBUTES:
            setattr(self, name, None)


def options_of(args: Any) -> list[str]:
    """Returns the options of perseusrun for an object with attributes of _HorovodArgs."""
    options: list[str] = []
    for name, value in vars(args).items():
        if name in _NO_OPTIONS or value is None or value is False:
            continue
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        if value is True or name == "verbose":
            options += [flag] if value else []
        elif name == "cooldown_range":
            options += [flag, *map(str, value)]
        elif isinstance(value, list | tuple | set | frozenset):
            options.append(f"{flag}={','.join(map(str, value))}")
        else:
            options.append(f"{flag}={value}")
    return options


__all__ = ["_HorovodArgs", "options_of"]
