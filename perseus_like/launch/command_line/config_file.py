"""Reads horovodrun's YAML configuration and turns it into options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..start_errors import LaunchError

# (section, key) -> option, or a pair of options for true and false. The empty section is the file's top level.
_OPTIONS: dict[tuple[str, str], str | tuple[str | None, str | None]] = {
    ("", "num_proc"): "--num-proc",
    ("", "hosts"): "--hosts",
    ("", "hostfile"): "--hostfile",
    ("", "verbose"): ("--verbose", None),
    ("", "start_timeout"): "--start-timeout",
    ("", "min_num_proc"): "--min-num-proc",
    ("", "max_num_proc"): "--max-num-proc",
    ("", "slots_per_host"): "--slots-per-host",
    ("", "host_discovery_script"): "--host-discovery-script",
    ("", "elastic_timeout"): "--elastic-timeout",
    ("", "reset_limit"): "--reset-limit",
    ("", "ssh_port"): "--ssh-port",
    ("", "ssh_identity_file"): "--ssh-identity-file",
    ("", "output_filename"): "--output-filename",
    ("", "network_interfaces"): "--network-interfaces",
    ("params", "fusion_threshold_mb"): "--fusion-threshold-mb",
    ("params", "cycle_time_ms"): "--cycle-time-ms",
    ("params", "cache_capacity"): "--cache-capacity",
    ("params", "hierarchical_allreduce"): ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
    ("params", "hierarchical_allgather"): ("--hierarchical-allgather", "--no-hierarchical-allgather"),
    ("params", "torus_allreduce"): ("--torus-allreduce", "--no-torus-allreduce"),
    ("autotune", "enabled"): ("--autotune", "--no-autotune"),
    ("autotune", "log_file"): "--autotune-log-file",
    ("autotune", "warmup_samples"): "--autotune-warmup-samples",
    ("autotune", "steps_per_sample"): "--autotune-steps-per-sample",
    ("autotune", "bayes_opt_max_samples"): "--autotune-bayes-opt-max-samples",
    ("autotune", "gaussian_process_noise"): "--autotune-gaussian-process-noise",
    ("timeline", "filename"): "--timeline-filename",
    ("timeline", "mark_cycles"): ("--timeline-mark-cycles", "--no-timeline-mark-cycles"),
    ("stall_check", "enabled"): ("--stall-check", "--no-stall-check"),
    ("stall_check", "warning_time_seconds"): "--stall-check-warning-time-seconds",
    ("stall_check", "shutdown_time_seconds"): "--stall-check-shutdown-time-seconds",
    ("library_options", "mpi_threads_disable"): ("--mpi-threads-disable", "--no-mpi-threads-disable"),
    ("library_options", "ccl_bgt_affinity"): "--thread-affinity",  # the name in older releases of Horovod
    ("library_options", "mpi_args"): "--mpi-args",
    ("library_options", "binding_args"): "--binding-args",
    ("library_options", "tcp"): ("--tcp", None),
    ("library_options", "num_nccl_streams"): "--num-nccl-streams",
    ("library_options", "thread_affinity"): "--thread-affinity",
    ("library_options", "gloo_timeout_seconds"): "--gloo-timeout-seconds",
    ("logging", "level"): "--log-level",
    ("logging", "hide_timestamp"): ("--log-without-timestamp", "--log-with-timestamp"),
    ("logging", "with_timestamp"): ("--log-with-timestamp", "--log-without-timestamp"),
}
# Only one of these options can be given.
HOST_OPTIONS = ("--hosts", "--hostfile", "--host-discovery-script")
# Options whose value may be a list in the file.
_LISTS = {"--hosts", "--network-interfaces", "--thread-affinity"}
_CONTROLLERS = {"gloo": "--gloo", "mpi": "--mpi"}
_SECTIONS = {section for section, _ in _OPTIONS if section}


def read_config(path: str) -> list[str]:
    """Returns the options that the file stands for. Raises LaunchError for an unknown key."""
    content = _load(path)
    found: list[str] = []
    for key, value in content.items():
        if key in _SECTIONS:
            if not isinstance(value, dict):
                raise LaunchError(f"{path}: {key!r} must be a table of settings, one 'key: value' per line")
            for inner, inner_value in value.items():
                found += _option(path, key, str(inner), inner_value)
        else:
            found += _option(path, "", str(key), value)
    if len([word for word in found if word.startswith(tuple(f"{flag}=" for flag in HOST_OPTIONS))]) > 1:
        raise LaunchError(f"{path}: give only one of hosts, hostfile and host_discovery_script")
    return found


def _load(path: str) -> dict[Any, Any]:
    try:
        import yaml
    except ImportError as error:
        raise LaunchError("--config-file needs PyYAML: pip install pyyaml") from error
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchError(f"cannot read the configuration {path!r}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise LaunchError(f"{path}: expected a table of settings, one 'key: value' per line")
    return content


def _option(path: str, section: str, key: str, value: Any) -> list[str]:
    if (section, key) == ("", "controller"):
        return _controller(path, value)
    option = _OPTIONS.get((section, key.replace("-", "_")))
    if option is None:
        raise LaunchError(f"{path}: unknown setting {f'{section}: {key}' if section else key}; correct or remove it")
    if value is None:
        return []
    if isinstance(value, list) and option in _LISTS and not any(isinstance(each, list | dict) for each in value):
        value = ",".join(map(str, value))
    if isinstance(value, list | dict):
        raise LaunchError(f"{path}: {key} must be one value, not {value!r}")
    if isinstance(option, str):
        return [f"{option}={value}"]
    if not isinstance(value, bool):
        raise LaunchError(f"{path}: {key} must be true or false, not {value!r}")
    flag = option[0] if value else option[1]
    return [flag] if flag else []


def _controller(path: str, value: Any) -> list[str]:
    if not value:
        return []
    option = _CONTROLLERS.get(str(value).lower())
    if option is None:
        raise LaunchError(f"{path}: controller must be one of {', '.join(_CONTROLLERS)}, not {value!r}")
    return [option]
