"""Jobs on this host, whose ranks the launcher starts directly."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping

from ..host_facts import temporary_folder
from .binding import KINDS, Binding, find_binding, ranges, started_on
from .command_line import Options
from .environment import (
    STORE,
    forwarded_values,
    job_environment,
    new_job_name,
    rank_environment,
    user_variables,
)
from .output import Screen, Style
from .output.masking import shell_line
from .processes.first_failure import RankEvidence
from .processes.supervise import Ending, Supervisor
from .start_errors import LaunchError


def run_local(options: Options, size: int) -> Ending:
    """Runs `size` ranks of the command on this host."""
    job_name = new_job_name()
    job = job_environment(os.environ, options, job_name, size)
    screen = Screen(Style.of(options), size)
    binding, notes = _bind(options, size, job)
    notes = [*options.notes, *notes]
    if options.verbose:
        notes.append(f"starting {size} ranks on this host, OMP_NUM_THREADS={job.get('OMP_NUM_THREADS')}")
    with (
        _reserved_port(job) as port,
        _store_folder(job, screen) as folder,
        Supervisor(screen, job_name, options.stop_timeout, clean_up=lambda: _remove(folder)) as supervisor,
    ):
        if port and folder:
            job[STORE] = f"{port} {folder}"
        for rank in range(size):
            supervisor.serve()
            if supervisor.is_stopping:
                break
            evidence = RankEvidence(log=screen.log_of(rank, "stderr"), rank=rank)
            with started_on(binding.cpus[rank] if binding else None):
                supervisor.start(
                    f"rank {rank}",
                    options.command,
                    rank_environment(job, rank, size, port),
                    stdin_of(rank),
                    screen.channel(rank, "stdout"),
                    screen.channel(rank, "stderr", evidence),
                    evidence,
                )
            while notes:  # not before the first rank, since the error of a program that cannot be started is enough
                screen.announce(notes.pop(0))
        is_complete = not supervisor.is_stopping
        code = supervisor.run()
        # If the ranks end normally after a signal, the job is a success, unless some ranks were not started.
        return supervisor.ending(128 + supervisor.stopped_by if supervisor.stopped_by and not is_complete else code)


def _bind(options: Options, size: int, job: dict[str, str]) -> tuple[Binding | None, list[str]]:
    """Returns the processors of the ranks, or None, and notes about them. Sets OMP_NUM_THREADS unless the user did."""
    kind = options.bind_to or ("core" if options.cpu_list else "none")
    if kind not in KINDS:
        raise LaunchError(
            f"--bind-to {kind}: on one host, perseusrun knows {', '.join(KINDS)}; --mpi passes other words to mpirun"
        )
    if kind == "none":
        return None, [
            "--report-bindings: the ranks are not bound; add --bind-to core"
        ] if options.report_bindings else []
    binding = find_binding(kind, options.cpu_list, size)
    if isinstance(binding, str):
        return None, [binding]
    if "OMP_NUM_THREADS" not in user_variables(os.environ, options):
        job["OMP_NUM_THREADS"] = str(binding.threads)
    drawn = binding.draw() if options.report_bindings else []
    return binding, [binding.describe(job.get("OMP_NUM_THREADS")), *drawn]


def describe_local(options: Options, size: int) -> list[str]:
    """Returns the shell line of each rank that `run_local` would start. The job's name and port are random."""
    job = job_environment(os.environ, options, "perseus-<random>", size)
    masked = forwarded_values(options)
    binding, _ = _bind(options, size, job)
    masks = [("taskset", "-c", ranges(cpus)) for cpus in binding.cpus] if binding else [()] * size
    environments = (rank_environment(job, rank, size, None) for rank in range(size))
    return [
        shell_line(environment, os.environ, masked, [*mask, *options.command])
        for environment, mask in zip(environments, masks, strict=True)
    ]


def stdin_of(rank: int) -> int | None:
    """Returns a rank's standard input. Rank 0 reads the launcher's, unless the job is in the background."""
    # None: the launcher was started without a standard input. A library may have opened a file with its number.
    return subprocess.DEVNULL if rank != 0 or sys.stdin is None or is_in_background() else None


def is_in_background() -> bool:
    """Returns True if this process would be stopped when it reads its terminal."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # a terminal without job control
        return False


@contextlib.contextmanager
def _reserved_port(job: Mapping[str, str]) -> Iterator[int | None]:
    """Reserves a TCP port for torch's `env://` store on rank 0, unless the user has chosen one.

    The port stays bound, but not listening, so that the system assigns it to no other process. A listener with
    SO_REUSEADDR, such as torch's, can still bind it.
    """
    if "MASTER_PORT" in job:
        yield None
        return
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def _store_folder(job: Mapping[str, str], screen: Screen) -> Iterator[str | None]:
    """Creates a folder for torch's `env://` store that only this user can enter, unless the user has set its address.

    `adapters/torch/distributed/autoload` uses it.
    """
    if "MASTER_PORT" in job:
        yield None
        return
    try:
        folder = temporary_folder("perseus-store-")
    except OSError as error:
        screen.announce(
            f"cannot create a folder for torch's env:// store: {error}; the store will listen on all network "
            "interfaces instead; set TMPDIR to a writable folder"
        )
        yield None
        return
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: str | None) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
