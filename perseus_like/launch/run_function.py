"""`perseus_like.run(function, ...)`: calls a Python function on each rank and returns what each returned.

`run` starts a `perseusrun`, which handles signals, processes and output. Function, arguments and results are pickled
into files of a private folder that only this user can enter. With several hosts, this folder must be on a file system
that the hosts share (`folder=`).
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..errors import HorovodsWords
from ..host_facts import temporary_folder
from .command_line import parse_options
from .elastic import is_elastic
from .processes.child_launcher import JobEnd, run_launcher
from .program import module_command
from .start_errors import LaunchError

_Result = TypeVar("_Result")

_PREFIX = "perseus-run-"


class RankError(HorovodsWords, RuntimeError):
    """The function failed on a rank. `rank` is its number, `remote_traceback` the text of its traceback."""

    horovods_words = ("", "Horovod detected that one or more processes exited with non-zero status: ")

    def __init__(self, rank: int | None, text: str, remote_traceback: str = "") -> None:
        super().__init__(f"{text}\n{remote_traceback}".rstrip())
        self.rank = rank
        self.remote_traceback = remote_traceback


def run(
    func: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[_Result]:
    """Calls `func(*args, **kwargs)` on several ranks, which it starts by a perseusrun, and returns what each returned.

    The parameters are those of horovod.run and stand for options of perseusrun. The last three are additional.

    Args:
        func: the function, which is pickled. It may be a lambda or a function of the main program, and calls `init`.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of ranks.
        min_num_proc: the smallest number of ranks with which an elastic job goes on.
        max_num_proc: the largest number of ranks of an elastic job.
        slots: the number of ranks on each host of an elastic job.
        reset_limit: the number of times that an elastic job may start again.
        cooldown_range: the shortest and the longest time, in seconds, for which a failed host is not used.
        hosts: the hosts and their ranks, as in "host1:2,host2:4". The default is this host.
        hostfile: a file with a line for each host, as in "host1 slots=2".
        host_discovery_script: a program that prints the hosts of an elastic job.
        start_timeout: the time, in seconds, in which all ranks must start.
        ssh_port: the port of ssh on the hosts.
        ssh_identity_file: the file of the private key for ssh.
        disable_cache: has no effect; hosts are checked at each start.
        output_filename: a folder in which each rank's output is kept.
        verbose: if not 0, the launcher reports what it does.
        use_gloo: if true, the ranks of several hosts start over ssh, and communicate without MPI.
        use_mpi: if true, mpirun starts the ranks, and they communicate through MPI.
        mpi_args: further options of mpirun.
        network_interface: the network interfaces to use, separated by commas.
        network_interfaces: another name of `network_interface`.
        executable: the Python of the ranks. The default is this one.
        np: the older name of `num_proc`.
        min_np: the older name of `min_num_proc`.
        max_np: the older name of `max_num_proc`.
        options: further options of perseusrun.
        env: the environment of the ranks. The default is that of this process.
        folder: a folder that all hosts share, for the pickled function and results. Needed with several hosts.

    Returns:
        The results in the order of ranks. In an elastic job, those of the last generation.

    Raises:
        RankError: the function or its process failed on a rank, or perseusrun rejected an option. If several ranks
            failed, it names the first, and no rank that has only lost another one. In an elastic job, only failures
            count from which the other workers did not recover.
        KeyboardInterrupt: this process was interrupted. The ranks have got a SIGINT, too, and have ended. They have
            the time of `--stop-timeout` for that.

    Examples:
        >>> hvd.run(lambda x: x * 2, args=(21,), num_proc=2)
        [42, 42]
    """
    smallest = min_num_proc or min_np
    values = {
        "--min-num-proc": smallest,
        "--max-num-proc": max_num_proc or max_np,
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "--host-discovery-script": host_discovery_script,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--mpi-args": mpi_args,
        "--network-interfaces": network_interfaces or network_interface,
    }
    given = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    if cooldown_range is not None:
        given += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    given += [flag for flag, wanted in {"--verbose": verbose, "--gloo": use_gloo, "--mpi": use_mpi}.items() if wanted]
    size = max(num_proc if np is None else np, smallest or 0)
    return _run(func, args, kwargs, size, [*given, *options], executable or sys.executable, env, folder)


def _run(
    func: Callable[..., _Result],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    size: int,
    options: Sequence[str],
    executable: str,
    env: Mapping[str, str] | None,
    folder: str | os.PathLike[str] | None,
) -> list[_Result]:
    import cloudpickle

    with _call_folder(folder) as call_folder:
        (call_folder / "call").write_bytes(cloudpickle.dumps((func, tuple(args), dict(kwargs or {}))))
        rank_command = [*module_command("perseus_like.launch.run_rank", executable), str(call_folder)]
        if "" in sys.path:  # an interactive Python
            rank_command.append(str(Path.cwd()))
        inner = dict(os.environ if env is None else env)
        # The ranks can import the modules that the caller can import.
        inner["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        words = ["-np", str(size), *options]
        end = run_launcher([*words, *rank_command], inner)
        return _collect(call_folder, end, _fixed_size(words))


@contextmanager
def _call_folder(parent: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Creates a folder that only this user may enter, and removes it afterwards."""
    try:
        name = tempfile.mkdtemp(prefix=_PREFIX, dir=parent) if parent else temporary_folder(_PREFIX)
    except OSError as error:
        raise LaunchError(
            f"perseus_like.run: cannot create a folder for the function and its results: {error}; set TMPDIR to a "
            "writable folder, or pass folder="
        ) from error
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def _fixed_size(words: Sequence[str]) -> int | None:
    """Returns the number of ranks that these options ask for; None if it may change."""
    try:
        options = parse_options(words)
        return None if is_elastic(options) else options.num_proc
    except LaunchError:  # perseusrun has reported it
        return None


def _collect(folder: Path, end: JobEnd, size: int | None) -> list[Any]:
    results = _last_generation(folder)
    if end.code == 0 and results and sorted(results) == list(range(len(results) if size is None else size)):
        return [pickle.loads(results[rank].read_bytes()) for rank in range(len(results))]
    failures = [
        (int(path.suffix[1:]), *pickle.loads(path.read_bytes()))
        for path in sorted(folder.glob("failed.*"), key=lambda path: path.stat().st_mtime_ns)
    ]
    failures.sort(key=lambda failure: bool(failure[-1]))  # those that are only consequences come last
    if failures:
        rank, text, remote, is_consequence = failures[0]
        if not is_consequence or end.rank in (None, rank):
            raise RankError(rank, f"rank {rank}: {text}", remote)
    if end.code != 0:
        raise RankError(end.rank, str(end))
    missing = sorted(set(range(size or 1)) - set(results))
    raise RankError(
        missing[0] if missing else None,
        f"perseus_like.run: ranks {missing} have left no result in {folder}: their processes ended before the function "
        "returned (os._exit), or their hosts do not share the folder; return from the function, or pass folder=, a "
        "folder that all hosts share",
    )


def _last_generation(folder: Path) -> dict[int, Path]:
    """Returns the results of the last generation of an elastic job by rank. Other jobs have one generation."""
    files = [(int(path.suffixes[0][1:]), int(path.suffixes[1][1:]), path) for path in folder.glob("result.*")]
    last = max((generation for generation, _, _ in files), default=0)
    return {rank: path for generation, rank, path in files if generation == last}
