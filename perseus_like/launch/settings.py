"""Options that set an environment variable of the core, as horovodrun's options of the same names do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """An option and the variable it sets. `value` is fixed for a switch; `scale` turns the unit into the core's."""

    flag: str
    variable: str
    help: str
    kind: type = str
    value: str | None = None
    scale: int = 1
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def encode(self, given: str) -> str:
        """The variable's text for what was given. Raises ValueError where it is not of the option's kind."""
        if self.choices and given.lower() not in self.choices:
            raise ValueError
        if self.kind is str:
            return given
        number = self.kind(given) * self.scale
        return str(number)


def _switch(name: str, variable: str, text: str) -> tuple[Setting, Setting]:
    return (
        Setting(f"--{name}", variable, text, value="1"),
        Setting(f"--no-{name}", variable, f"the opposite of --{name}", value="0"),
    )


GROUPS: dict[str, tuple[Setting, ...]] = {
    "collectives": (
        Setting(
            "--fusion-threshold-mb", "PERSEUS_FUSION_THRESHOLD", "size of the fusion buffer in MiB", int, scale=1 << 20
        ),
        Setting("--cache-capacity", "PERSEUS_CACHE_CAPACITY", "entries of the response cache", int),
        *_switch("hierarchical-allreduce", "PERSEUS_HIERARCHICAL_ALLREDUCE", "reduce within hosts, then between them"),
        *_switch("hierarchical-allgather", "PERSEUS_HIERARCHICAL_ALLGATHER", "gather within hosts, then between them"),
        Setting("--num-nccl-streams", "PERSEUS_NUM_NCCL_STREAMS", "communication streams of NCCL", int),
        Setting("--thread-affinity", "PERSEUS_THREAD_AFFINITY", "core of the background thread, per local rank"),
        *_switch("mpi-threads-disable", "PERSEUS_MPI_THREADS_DISABLE", "do not ask MPI for its multi-threaded mode"),
    ),
    "autotuning": (
        *_switch("autotune", "PERSEUS_AUTOTUNE", "tune the parameters while training"),
        Setting("--autotune-log-file", "PERSEUS_AUTOTUNE_LOG", "CSV file of the trials"),
        Setting("--autotune-warmup-samples", "PERSEUS_AUTOTUNE_WARMUP_SAMPLES", "samples left out at the start", int),
        Setting("--autotune-steps-per-sample", "PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE", "steps of one sample", int),
    ),
    "timeline": (
        Setting("--timeline-filename", "PERSEUS_TIMELINE", "write a Chrome trace to this file"),
        *_switch("timeline-mark-cycles", "PERSEUS_TIMELINE_MARK_CYCLES", "mark the engine's cycles in it"),
    ),
    "stall check": (
        Setting("--no-stall-check", "PERSEUS_STALL_CHECK_DISABLE", "no warnings about stalled tensors", value="1"),
        Setting("--stall-check", "PERSEUS_STALL_CHECK_DISABLE", "warn about stalled tensors (default)", value="0"),
        Setting(
            "--stall-check-warning-time-seconds",
            "PERSEUS_STALL_CHECK_TIME_SECONDS",
            "warn after this many seconds",
            int,
        ),
        Setting(
            "--stall-check-shutdown-time-seconds",
            "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS",
            "end the job after this many seconds",
            int,
        ),
    ),
    "several hosts": (
        Setting(
            "--heartbeat-timeout",
            "PERSEUS_HEARTBEAT_TIMEOUT",
            "a host that does not answer for this many seconds is lost (default 30; 0: never)",
            int,
        ),
    ),
    "logging of the core": (
        Setting(
            "--log-level",
            "PERSEUS_LOG_LEVEL",
            "trace, debug, info, warning, error (fatal is the same) or off",
            choices=("trace", "debug", "info", "warning", "error", "fatal", "off"),
        ),
        Setting(
            "--log-without-timestamp",
            "PERSEUS_LOG_HIDE_TIME",
            "no time in log lines",
            value="1",
            aliases=("--log-hide-timestamp",),
        ),
        Setting(
            "--log-with-timestamp",
            "PERSEUS_LOG_HIDE_TIME",
            "time in log lines",
            value="0",
            aliases=("--no-log-hide-timestamp",),
        ),
    ),
}

# horovodrun's options without a meaning here: accepted, said once. Flag -> (values it takes, what to say).
_NO_MODEL = "autotuning tries a fixed list of values and fits no model"
IGNORED: dict[str, tuple[int, str]] = {
    "--autotune-bayes-opt-max-samples": (1, _NO_MODEL),
    "--autotune-gaussian-process-noise": (1, _NO_MODEL),
    "--cycle-time-ms": (1, "there is no cycle: tensors are sent when they are ready"),
    "--torus-allreduce": (0, "the transport chooses its own algorithm"),
    "--no-torus-allreduce": (0, "the transport chooses its own algorithm"),
    "--disable-cache": (0, "nothing about hosts is cached"),
    "--gloo": (0, "there is no Gloo; one host needs nothing, several hosts use MPI"),
    "--gloo-timeout-seconds": (1, "there is no Gloo; see --start-timeout"),
    "--allow-run-as-root": (0, "mpirun is told anyway"),
}

# horovodrun's options that would change what the job is: refused. Flag -> (values it takes, why).
REFUSED: dict[str, tuple[int, str]] = {
    "--jsrun": (0, "jsrun is not supported; start the job with jsrun itself, or with mpirun"),
}
