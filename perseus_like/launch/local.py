"""Ranks on this host, started directly."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

from .environment import STORE, forwarded_values, job_environment, new_job_name, rank_environment
from .masking import shell_line
from .options import Options
from .output import Screen, Style
from .supervise import Supervisor
from .verdict import Witness


def run_local(options: Options, size: int) -> int:
    """Runs `size` ranks of the command here; returns the job's exit code."""
    job_name = new_job_name()
    job = job_environment(os.environ, options, job_name, size)
    screen = Screen(Style(options.prefix_output, options.prefix_timestamp, options.output_filename), size)
    for note in options.notes:
        screen.say(note)
    if options.verbose:
        screen.say(f"starting {size} ranks on this host, OMP_NUM_THREADS={job.get('OMP_NUM_THREADS')}")
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
            witness = Witness()
            supervisor.start(
                f"rank {rank}",
                options.command,
                rank_environment(job, rank, size, port),
                stdin_of(rank),
                screen.channel(rank, "stdout"),
                screen.channel(rank, "stderr", witness),
                witness.blames_another,
            )
        is_complete = not supervisor.is_stopping
        code = supervisor.run()
        # Ranks that end in good order after a signal are a success, unless some never began.
        return 128 + supervisor.stopped_by if supervisor.stopped_by and not is_complete else code


def describe_local(options: Options, size: int) -> list[str]:
    """One shell line per rank: what `run_local` would start. The job's name and port are made up at the start."""
    job = job_environment(os.environ, options, "perseus-<random>", size)
    masked = forwarded_values(options)
    environments = (rank_environment(job, rank, size, None) for rank in range(size))
    return [shell_line(environment, os.environ, masked, options.command) for environment in environments]


def stdin_of(rank: int) -> int | None:
    """Rank 0 reads what the launcher could read; the others, and jobs in the background, read nothing."""
    if rank != 0:
        return subprocess.DEVNULL
    try:
        is_background = os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # a terminal without job control
        is_background = False
    return subprocess.DEVNULL if is_background else None


@contextlib.contextmanager
def _reserved_port(job: Mapping[str, str]) -> Iterator[int | None]:
    """A TCP port for rank 0 to listen on (torch's `env://` store), unless the user has chosen one.

    It stays bound, but not listening, so that the system gives it to nobody else; a listener with SO_REUSEADDR,
    as torch's is, may still take it.
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
    """A folder that only this user may enter, for torch's `env://` store, unless the user has chosen its address.

    `adapters/torch/distributed/autoload` uses it.
    """
    if "MASTER_PORT" in job:
        yield None
        return
    try:
        folder = tempfile.mkdtemp(prefix="perseus-store-")
    except OSError as error:
        screen.say(f"torch's store for env:// will listen on all network interfaces: no folder for a file: {error}")
        yield None
        return
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: str | None) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
