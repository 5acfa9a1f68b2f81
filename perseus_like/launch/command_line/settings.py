"""Options that set environment variables: `-x`, and horovodrun's options that set a variable of the core."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..start_errors import LaunchError

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_forward(text: str) -> tuple[str, str | None]:
    """Parses the value of `-x`: `NAME` or `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not IDENTIFIER.fullmatch(name):
        raise LaunchError(f"-x: {name!r} is not the name of an environment variable; write -x NAME or -x NAME=VALUE")
    return name, value if equals else None


@dataclass(frozen=True)
class Setting:
    """An option and the variable that it sets. `value` is fixed for a switch. `scale` converts to the core's unit."""

    flag: str
    variable: str
    help: str
    metavar: str = ""  # of an option with a value: its unit
    kind: type = str
    value: str | None = None
    scale: int = 1
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    pattern: str = ""  # of a text
    expected: str = "not a number of at least 0"  # the error text for another value

    def encode(self, given: str) -> str:
        """Returns the variable's text for the option's value. Raises ValueError if the value makes no sense."""
        if self.choices and given.lower() not in self.choices:
            raise ValueError
        if self.kind is str:
            if self.pattern and not re.fullmatch(self.pattern, given):
                raise ValueError
            return given
        number = self.kind(given) * self.scale
        if number < 0:
            raise ValueError
        return str(number)


def _switch(name: str, variable: str, text: str) -> tuple[Setting, Setting]:
    return (
        Setting(f"--{name}", variable, text, value="1"),
        Setting(f"--no-{name}", variable, f"the opposite of --{name}", value="0"),
    )


GROUPS: dict[str, tuple[Setting, ...]] = {
    "collectives": (
        Setting(
            "--fusion-threshold-mb",
            "PERSEUS_FUSION_THRESHOLD",
            "size of the fusion buffer (default 64)",
            "MIB",
            int,
            scale=1 << 20,
        ),
        Setting(
            "--cache-capacity", "PERSEUS_CACHE_CAPACITY", "entries of the response cache (default 16384)", "N", int
        ),
        Setting(
            "--thread-affinity",
            "PERSEUS_THREAD_AFFINITY",
            "core of the communication thread, by local rank (default: any)",
            "0,4",
            pattern=r"[0-9]+(,[0-9]+)*",
            expected="not a list of cores such as 0,4",
        ),
        *_switch("mpi-threads-disable", "PERSEUS_MPI_THREADS_DISABLE", "initialise MPI without multi-threading"),
    ),
    "autotuning": (
        *_switch("autotune", "PERSEUS_AUTOTUNE", "tune the core's parameters during training"),
        Setting("--autotune-log-file", "PERSEUS_AUTOTUNE_LOG", "write the trials to this CSV file", "FILE"),
        Setting(
            "--autotune-warmup-samples",
            "PERSEUS_AUTOTUNE_WARMUP_SAMPLES",
            "samples to skip at the start (default 3)",
            "N",
            int,
        ),
        Setting(
            "--autotune-steps-per-sample",
            "PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE",
            "steps of one sample (default 10)",
            "N",
            int,
        ),
    ),
    "timeline": (
        Setting("--timeline-filename", "PERSEUS_TIMELINE", "write a Chrome trace to this file", "FILE"),
        *_switch("timeline-mark-cycles", "PERSEUS_TIMELINE_MARK_CYCLES", "mark the engine's cycles in the trace"),
    ),
    "stall check": (
        Setting("--no-stall-check", "PERSEUS_STALL_CHECK_DISABLE", "do not warn about stalled tensors", value="1"),
        Setting("--stall-check", "PERSEUS_STALL_CHECK_DISABLE", "warn about stalled tensors (default)", value="0"),
        Setting(
            "--stall-check-warning-time-seconds",
            "PERSEUS_STALL_CHECK_TIME_SECONDS",
            "warn after this time (default 60)",
            "SECONDS",
            int,
        ),
        Setting(
            "--stall-check-shutdown-time-seconds",
            "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS",
            "end the job after this time (default 0: never)",
            "SECONDS",
            int,
        ),
    ),
    "several hosts": (
        Setting(
            "--heartbeat-timeout",
            "PERSEUS_HEARTBEAT_TIMEOUT",
            "treat a host as lost if it does not answer for this time (default 30; 0: never)",
            "SECONDS",
            int,
        ),
    ),
    "logging of the core": (
        Setting(
            "--log-level",
            "PERSEUS_LOG_LEVEL",
            "trace, debug, info, warning (default), error, fatal (the same as error) or off",
            "LEVEL",
            choices=("trace", "debug", "info", "warning", "error", "fatal", "off"),
        ),
        Setting(
            "--log-without-timestamp",
            "PERSEUS_LOG_HIDE_TIME",
            "print log lines without the time (default)",
            value="1",
            aliases=("--log-hide-timestamp",),
        ),
        Setting(
            "--log-with-timestamp",
            "PERSEUS_LOG_HIDE_TIME",
            "print log lines with the time",
            value="0",
            aliases=("--no-log-hide-timestamp",),
        ),
    ),
}

# horovodrun's options that are accepted without an effect. The launcher warns once about each that is given.
# Flag -> (the number of its values, the reason).
_NO_MODEL = "autotuning tries a fixed list of values and fits no model"
_HOSTS_FIRST = "ranks always reduce within their host first, and then between hosts"
_SHARED_MEMORY = "ranks of one host always gather through shared memory"
_OWN_ALGORITHM = "the transport chooses its own algorithm"
IGNORED: dict[str, tuple[int, str]] = {
    "--autotune-bayes-opt-max-samples": (1, _NO_MODEL),
    "--autotune-gaussian-process-noise": (1, _NO_MODEL),
    "--cycle-time-ms": (1, "there is no cycle time: tensors are sent when they are ready"),
    "--hierarchical-allreduce": (0, _HOSTS_FIRST),
    "--no-hierarchical-allreduce": (0, _HOSTS_FIRST),
    "--hierarchical-allgather": (0, _SHARED_MEMORY),
    "--no-hierarchical-allgather": (0, _SHARED_MEMORY),
    "--num-nccl-streams": (1, "NCCL has one stream for each process set"),
    "--torus-allreduce": (0, _OWN_ALGORITHM),
    "--no-torus-allreduce": (0, _OWN_ALGORITHM),
    "--disable-cache": (0, "the launcher caches nothing about hosts"),
    "--gloo-timeout-seconds": (1, "Gloo is not used; set --start-timeout instead"),
    "--allow-run-as-root": (0, "the launcher always passes it to mpirun"),
}

# horovodrun's options that are refused, since the job would be another one. Flag -> (the number of its values, the
# reason).
REFUSED: dict[str, tuple[int, str]] = {
    "--jsrun": (0, "jsrun is not supported; start the job with jsrun itself, or with mpirun"),
}
