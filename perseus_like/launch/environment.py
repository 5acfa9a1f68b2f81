"""The environment of ranks: the variables that the launcher sets, removes and forwards."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence

from ..host_facts import usable_cores
from ..names import folder_of
from ..protocol.failure_record import FULL_TRACEBACKS, VARIABLE
from ..protocol.rank_variables import RANK_FACTS, TCP_RENDEZVOUS, rank_variables
from .command_line import Options
from .command_line.settings import IDENTIFIER
from .output.rows import terminal_size
from .processes.signals import INTERRUPTS

AS_GLOO = "PERSEUS_AS_GLOO"  # read by `adapters/torch/distributed/autoload`
STORE = "PERSEUS_TORCH_STORE"  # the port that a job on one host reserves for torch's `env://` store, and its folder

# Variables of a single rank. The values of an outer launcher must not reach the ranks of this one.
_OWN = (
    *(f"{prefix}_{fact}" for prefix in ("PERSEUS", "HOROVOD") for fact in RANK_FACTS),
    "HOROVOD_HOSTNAME",
    "PERSEUS_RENDEZVOUS",
    TCP_RENDEZVOUS,
    "PERSEUS_LAUNCHER",
    "PERSEUS_JOB",
    "PERSEUS_ELASTIC",
    "HOROVOD_ELASTIC",
    "PERSEUS_LAUNCHER_HEARTBEAT",
    "PERSEUS_RANK_MAIN",
    "PERSEUS_WORKER",
    VARIABLE,
    INTERRUPTS,
    STORE,
    "PERSEUS_STARTED_BY",
)
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MPI_RANK_PREFIXES = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "MPI_LOCAL", "PRTE_LAUNCHED", "OMPI_UNIVERSE")

# Variables that belong to the machine, the login or the terminal. They would be wrong on another host.
_NOT_FORWARDED = re.compile(
    r"(OMPI|PMIX|PRTE|PMI|HYDRA|SLURM|SSH|XDG|DBUS|SUDO|LC|BASH)_.*"
    r"|HOSTNAME|HOST|HOME|USER|LOGNAME|SHELL|MAIL|PWD|OLDPWD|SHLVL|_|TERM|COLORTERM|DISPLAY|TMPDIR|TMP|TEMP"
    r"|LS_COLORS|LESS\w*|PS[0-9]|EDITOR|PAGER|TTY|INVOCATION_ID|JOURNAL_STREAM"
)


def new_job_name() -> str:
    """Returns a name for the job and its abstract Unix socket that cannot be guessed (128 random bits)."""
    return f"perseus-{secrets.token_hex(16)}"


def job_environment(
    outer: Mapping[str, str], options: Options, job_name: str, ranks_per_host: int | None
) -> dict[str, str]:
    """Returns the variables that all ranks share. The user's variables override defaults, and options override both."""
    explicit = {name for name, _ in options.forward}
    inner = {name: value for name, value in outer.items() if name in explicit or not _is_foreign(name, outer)}
    inner["PERSEUS_LAUNCHER"] = "perseusrun"
    inner["PERSEUS_JOB"] = job_name
    # A rank that is killed loses the output in its buffer.
    inner.setdefault("PYTHONUNBUFFERED", "1")
    inner.setdefault("PYTHONFAULTHANDLER", "1")  # a rank that crashes prints its Python stack
    if ranks_per_host:
        inner.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // ranks_per_host)))
    if options.start_timeout is not None:
        inner["PERSEUS_START_TIMEOUT"] = str(options.start_timeout)
    if options.nics:
        inner.setdefault("NCCL_SOCKET_IFNAME", options.nics)
        inner.setdefault("GLOO_SOCKET_IFNAME", options.nics)
        inner.setdefault("PERSEUS_NETWORK_INTERFACES", options.nics)
    for name, value in _terminal(options, ranks_per_host or 1).items():
        inner.setdefault(name, value)
    if options.full_tracebacks:
        inner[FULL_TRACEBACKS] = "1"
    if options.as_gloo:
        inner[AS_GLOO] = "1"
    inner = user_variables(inner, options)
    if options.as_horovod:
        paths = filter(None, [folder_of("horovod"), inner.get("PYTHONPATH")])
        inner["PYTHONPATH"] = os.pathsep.join(paths)
    return inner


def _terminal(options: Options, ranks_per_host: int) -> dict[str, str]:
    """Returns variables for ranks that write to a terminal: its size less the prefix of lines, for progress bars."""
    if not os.isatty(2):
        return {}
    columns, lines = terminal_size(2)
    size = max(options.num_proc or 1, ranks_per_host)
    prefix = len(f"[{size - 1}]<stderr>:") if options.prefix_output else 0
    stamp = len("2026-01-01 00:00:00 ") if options.prefix_timestamp else 0
    rest = max(20, columns - prefix - stamp)
    return {
        "COLUMNS": str(rest),
        "LINES": str(lines),
        "TQDM_NCOLS": str(rest - 1),  # tqdm does not read COLUMNS since release 4.66
        "PERSEUS_STALL_CHECK_FIRST_SECONDS": "10",  # a person watches
    }


def user_variables(outer: Mapping[str, str], options: Options) -> dict[str, str]:
    """Returns `outer` with the variables that the options set."""
    return {**outer, **options.settings, **{name: value for name, value in options.forward if value is not None}}


def _is_foreign(name: str, outer: Mapping[str, str]) -> bool:
    nested = "PERSEUS_LAUNCHER" in outer and name in _TORCH
    return name in _OWN or nested or name.startswith(_MPI_RANK_PREFIXES)


def rank_environment(job: Mapping[str, str], rank: int, size: int, master_port: int | None) -> dict[str, str]:
    """Returns the environment of one of `size` ranks on this host. `master_port` is for torch's `env://` store."""
    inner = {**job, **numbers_of_rank(rank, [size])}
    inner["HOROVOD_HOSTNAME"] = socket.gethostname()
    inner["PERSEUS_RENDEZVOUS"] = job["PERSEUS_JOB"]
    if master_port is not None:
        inner.setdefault("MASTER_PORT", str(master_port))
    if "MASTER_PORT" in inner:
        inner.setdefault("MASTER_ADDR", "127.0.0.1")
    return inner


def numbers_of_rank(rank: int, ranks_per_host: Sequence[int]) -> dict[str, str]:
    """Returns the variables with the numbers of a rank, under the names of this library, of Horovod and of torch."""
    inner = {**rank_variables("PERSEUS", rank, ranks_per_host), **rank_variables("HOROVOD", rank, ranks_per_host)}
    inner.update(RANK=str(rank), WORLD_SIZE=inner["PERSEUS_SIZE"], LOCAL_RANK=inner["PERSEUS_LOCAL_RANK"])
    inner["LOCAL_WORLD_SIZE"] = inner["LOCAL_SIZE"] = inner["PERSEUS_LOCAL_SIZE"]
    return inner


def forwarded_names(job: Mapping[str, str], explicit: Iterable[str]) -> list[str]:
    """Returns the sorted names of the job's variables for other hosts, without those of this machine or login."""
    names = {name for name in job if IDENTIFIER.fullmatch(name) and not _NOT_FORWARDED.fullmatch(name)}
    return sorted(names | {name for name in explicit if name in job})


def forwarded_values(options: Options) -> set[str]:
    """Returns the names of the variables whose values are on the launcher's command line, and may be secret."""
    return {name for name, value in options.forward if value is not None}
