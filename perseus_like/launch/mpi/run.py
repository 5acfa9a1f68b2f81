"""A job through mpirun."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from ..cores import usable_cores
from ..environment import forwarded_names, job_environment, new_job_name
from ..hosts import Host
from ..options import Options
from ..output import Channel, Screen, Style
from ..supervise import Supervisor
from ..verdict import Failure, Witness
from . import hydra, open_mpi, rank_main
from .demultiplex import ChannelOf, MarkedOutput, hydra_output, open_mpi_output
from .family import Family, Mpirun, find_mpirun, with_own_folder
from .plan import Line, Plan

# mpirun ends the job by itself about a second after a rank has failed (rank_main.py); this is for when it does not.
FAILURE_GRACE_SECONDS = 1.5
# It has other hosts to clean up.
TERMINATE_SECONDS = 5.0
ORPHAN_SECONDS = 2.0

_DIALECTS: dict[Family, Callable[[Path, Plan], Line]] = {
    Family.OPEN_MPI_4: open_mpi.line_4,
    Family.OPEN_MPI_5: open_mpi.line_5,
    Family.MPICH: hydra.mpich_line,
    Family.INTEL: hydra.intel_line,
}


def run_mpi(options: Options, size: int, hosts: list[Host] | None) -> int:
    """Runs the job through mpirun; returns its exit code."""
    mpirun = find_mpirun(options.mpirun)
    job_name = new_job_name()
    line = make_line(mpirun, options, size, hosts, job_name)
    screen = Screen(Style(options.prefix_output, options.prefix_timestamp, options.output_filename), size)
    for note in options.notes:
        screen.say(note)
    if options.verbose:
        screen.say(f"{mpirun.family.value} {mpirun.version} ({mpirun.path})")
        screen.say(shell_text(line))
    with Supervisor(screen, job_name, options.stop_timeout, TERMINATE_SECONDS, ORPHAN_SECONDS) as supervisor:
        out, err = (
            _sorter(mpirun.family, job_name, _Channels(screen, name, job_name, supervisor))
            for name in ("stdout", "stderr")
        )
        supervisor.start("mpirun", line.argv, line.environment, None, out, err, blames_another=lambda: True)
        code = supervisor.run()
        # Open MPI says 1 whatever has ended it.
        return 128 + supervisor.stopped_by if code and supervisor.stopped_by else code


def describe_mpi(options: Options, size: int, hosts: list[Host] | None) -> str:
    """The shell line that `run_mpi` would run."""
    return shell_text(make_line(find_mpirun(options.mpirun), options, size, hosts, "perseus-job"))


def make_line(mpirun: Mpirun, options: Options, size: int, hosts: list[Host] | None, job_name: str) -> Line:
    """The job in the dialect of this mpirun."""
    most = max((host.slots for host in hosts), default=size) if hosts else size
    environment = job_environment(os.environ, options, job_name, most)
    environment = with_own_folder(environment, mpirun.path)
    plan = Plan(
        size=size,
        hosts=hosts,
        command=_wrapped(options.command, job_name),
        environment=environment,
        forward=forwarded_names(environment, (name for name, _ in options.forward)),
        tag=job_name,
        remote_shell=options.remote_shell,
        ssh_args=_ssh_args(options),
        interfaces=options.nics,
        tcp=options.tcp,
        binding=options.binding_args,
        extra=options.mpi_args,
        is_oversubscribed=most > usable_cores(),  # other hosts are taken to be like this one
        is_root=os.geteuid() == 0,
    )
    return _DIALECTS[mpirun.family](mpirun.path, plan)


def _wrapped(command: list[str], tag: str) -> list[str]:
    return [sys.executable, "-IS", str(Path(rank_main.__file__).absolute()), tag, json.dumps(command)]


def _ssh_args(options: Options) -> list[str]:
    args = ["-p", str(options.ssh_port)] if options.ssh_port else []
    return args + (["-i", options.ssh_identity_file] if options.ssh_identity_file else [])


def shell_text(line: Line) -> str:
    """The line for a shell, with the variables that this environment has not or has otherwise."""
    changed = [f"{name}={value}" for name, value in sorted(line.environment.items()) if os.environ.get(name) != value]
    return shlex.join([*(["env", *changed] if changed else []), *line.argv])


def _sorter(family: Family, tag: str, channel_of: ChannelOf) -> MarkedOutput:
    match family:
        case Family.MPICH | Family.INTEL:
            return hydra_output(tag, channel_of)
        case Family.OPEN_MPI_4:
            return open_mpi_output("", channel_of)
        case Family.OPEN_MPI_5:
            return open_mpi_output(" ", channel_of)


class _Channels:
    """The channels of all ranks for one stream, made as they turn up."""

    def __init__(self, screen: Screen, name: str, tag: str, supervisor: Supervisor) -> None:
        self._screen = screen
        self._name = name
        self._tag = tag
        self._supervisor = supervisor
        self._channels: dict[int | None, Channel] = {}

    def __call__(self, rank: int | None) -> Channel:
        if rank not in self._channels:
            is_watched = rank is not None and self._name == "stderr"
            reports = _Reports(rank or 0, self._tag, self._supervisor) if is_watched else None
            self._channels[rank] = self._screen.channel(rank, self._name, reports)
        return self._channels[rank]


class _Reports:
    """Takes a rank's last words (`rank_main`) out of its stderr."""

    def __init__(self, rank: int, tag: str, supervisor: Supervisor) -> None:
        self._rank = rank
        self._opening = f"<{tag} ended ".encode()
        self._report = re.compile(re.escape(self._opening) + rb"([0-9]+)>(\S*) ([^\n]*)\n")
        self._supervisor = supervisor
        self._witness = Witness()
        self._pending = b""

    def pass_on(self, data: bytes) -> bytes:
        """`data` without reports; what may be the beginning of one is kept for later."""
        self._witness.pass_on(data)
        self._pending += data
        if report := self._report.search(self._pending):
            code, host, text = int(report[1]), report[2].decode(), report[3].decode(errors="replace")
            who = f"rank {self._rank} on {host}"
            failure = Failure(who, text, code, text.startswith("was killed"), self._witness.blames_another)
            self._supervisor.fail(failure, FAILURE_GRACE_SECONDS)
            self._pending = self._pending[: report.start()] + self._pending[report.end() :]
        keep = self._pending.rfind(b"<")
        rest = self._pending[keep:] if keep != -1 else b""
        if not (rest.startswith(self._opening) or self._opening.startswith(rest)):
            rest = b""
        passed = self._pending[: len(self._pending) - len(rest)]
        self._pending = rest
        return passed

    def rest(self) -> bytes:
        """What was kept, at the end of the stream."""
        kept, self._pending = self._pending, b""
        return kept
