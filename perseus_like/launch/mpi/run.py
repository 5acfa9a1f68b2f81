"""Jobs through mpirun."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...system import installed_version, usable_cores
from ..addresses import listen_at, own_addresses
from ..environment import forwarded_names, forwarded_values, job_environment, new_job_name, user_variables
from ..errors import LaunchError
from ..hosts import Host, is_this_machine
from ..masking import shell_line
from ..options import Options
from ..output import Channel, Screen, Style
from ..preflight import DEFAULT_SECONDS, SRUN, Wanted, check_allocation, check_hosts, remote_shell
from ..supervise import Supervisor
from ..verdict import Failure, Witness
from . import hydra, open_mpi, rank_main
from .demultiplex import ChannelOf, MarkedOutput, hydra_output, open_mpi_output
from .family import Family, Mpirun, find_mpirun, with_own_folder
from .heartbeat import DEFAULT_TIMEOUT_SECONDS, LauncherHeartbeat
from .plan import Line, Plan
from .rank_main import HEARTBEAT
from .rank_status import RankStatus, StatusFilter

# mpirun ends the job by itself about a second after a rank has failed (rank_main.py). Otherwise perseusrun ends it now.
FAILURE_GRACE_SECONDS = 1.5
# Open MPI 4 takes 3 s to end the job if ranks ignore SIGTERM. It crashes if it gets a signal meanwhile.
OPEN_MPI_4_GRACE_SECONDS = 5.0
# mpirun needs time to clean up other hosts. If it cannot, ranks there notice by themselves (heartbeat.py).
TERMINATE_SECONDS = 3.0
ORPHAN_SECONDS = 2.0
DEFAULT_START_SECONDS = 60  # as in the core

_HEARTBEAT_TIMEOUT = "PERSEUS_HEARTBEAT_TIMEOUT"
_NO_ADDRESS = (
    "no heartbeat between the launcher and the ranks: this host has no address on the given network "
    "interfaces. The job continues, but only mpirun detects that a rank is lost"
)

# The variables in which MPIs take the program that they call instead of ssh.
_REMOTE_SHELLS = (
    "PRTE_MCA_plm_ssh_agent",
    "OMPI_MCA_plm_rsh_agent",
    "HYDRA_LAUNCHER_EXEC",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC",
)

_DIALECTS: dict[Family, Callable[[Path, Plan], Line]] = {
    Family.OPEN_MPI_4: open_mpi.line_4,
    Family.OPEN_MPI_5: open_mpi.line_5,
    Family.MPICH: hydra.mpich_line,
    Family.INTEL: hydra.intel_line,
}


def run_mpi(options: Options, size: int, hosts: list[Host] | None) -> int:
    """Runs the job through mpirun. Returns its exit code."""
    mpirun = find_mpirun(options.mpirun)
    if hosts and options.check_hosts:
        _check_hosts(mpirun, options, hosts)
    job_name = new_job_name()
    heartbeat = _heartbeat(options, size)
    line = make_line(mpirun, options, size, hosts, job_name, heartbeat.text if heartbeat else "")
    screen = Screen(Style.of(options), size)
    for note in options.notes:
        screen.announce(note)
    if heartbeat and not heartbeat.text:
        screen.announce(_NO_ADDRESS)
    if options.verbose:
        screen.announce(f"{mpirun.family.value} {mpirun.version} ({mpirun.path})")
        screen.announce(shell_text(line, options))
    status = RankStatus(size, [host.name for host in hosts or [] for _ in range(host.slots)])
    grace = OPEN_MPI_4_GRACE_SECONDS if mpirun.family is Family.OPEN_MPI_4 else FAILURE_GRACE_SECONDS
    with Supervisor(screen, job_name, options.stop_timeout, TERMINATE_SECONDS, ORPHAN_SECONDS) as supervisor:

        def fail(failure: Failure) -> None:
            supervisor.fail(failure, grace)

        def lose(failure: Failure) -> None:
            # If mpirun cannot start a rank, it ends those that run: they are lost, but they have not failed first.
            is_certain = status.have_all_begun()
            fail(failure if is_certain else replace(failure, was_killed=False, witness=Witness(blames_another=True)))

        def end_if_late() -> None:
            for failure in [] if supervisor.is_stopping else status.late(_start_seconds(options)):
                fail(failure)

        @functools.cache
        def filter_of(rank: int) -> StatusFilter:
            return StatusFilter(rank, job_name, status, fail, Witness(log=screen.log_of(rank, "stderr"), rank=rank))

        out, err = (
            _sorter(mpirun.family, job_name, _Channels(screen, name, filter_of)) for name in ("stdout", "stderr")
        )
        if heartbeat:
            heartbeat.watch(supervisor, lose, lambda rank, line: filter_of(rank).take(line))
        supervisor.later(_start_seconds(options), end_if_late)
        supervisor.serve()
        is_started = not supervisor.is_stopping
        if is_started:
            supervisor.start("mpirun", line.argv, line.environment, None, out, err, Witness(blames_another=True))
        code = supervisor.run(missed=status.missed)
        # Open MPI returns 1 after any signal.
        return 128 + supervisor.stopped_by if supervisor.stopped_by and (code or not is_started) else code


def _check_hosts(mpirun: Mpirun, options: Options, hosts: list[Host]) -> None:
    names = [host.name for host in hosts if not is_this_machine(host.name)]
    seconds = options.start_timeout or DEFAULT_SECONDS
    paths = [str(mpirun.path), str(Path.cwd())]
    if options.is_batch:
        if options.batch_system == "Slurm" and names and not options.remote_shell and shutil.which(SRUN[0]):
            everywhere = [host.name for host in hosts]
            note = check_allocation(everywhere, SRUN, Wanted(installed_version(), paths), seconds)
            options.notes += [note] if note else []
        return
    given = options.remote_shell or next((os.environ[name] for name in _REMOTE_SHELLS if os.environ.get(name)), None)
    shell = remote_shell(given, _ssh_args(options), seconds)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(each) for each in listen_at(_reachable_addresses(options))]
        way_back = [each.getsockname()[:2] for each in listeners]
        check_hosts(names, shell, Wanted(installed_version(), paths, way_back), seconds)


def _reachable_addresses(options: Options) -> list[str]:
    """Returns the addresses at which other hosts may reach this one."""
    interfaces = options.nics or user_variables(os.environ, options).get("PERSEUS_NETWORK_INTERFACES")
    return [each for each in own_addresses(interfaces) if not ipaddress.ip_address(each).is_loopback]


def _start_seconds(options: Options) -> float:
    """Returns the time in which mpirun must have started all ranks."""
    given = user_variables(os.environ, options)
    text = given.get("PERSEUS_START_TIMEOUT") or given.get("HOROVOD_START_TIMEOUT") or ""
    return options.start_timeout or float(text if text.isdecimal() else DEFAULT_START_SECONDS)


def _heartbeat(options: Options, size: int) -> LauncherHeartbeat | None:
    given = user_variables(os.environ, options)
    text = given.get(_HEARTBEAT_TIMEOUT) or str(DEFAULT_TIMEOUT_SECONDS)
    if not re.fullmatch("[0-9]+", text):
        raise LaunchError(f"{_HEARTBEAT_TIMEOUT}={text!r} is not a number of seconds; give a whole number, or 0")
    interfaces = options.nics or given.get("PERSEUS_NETWORK_INTERFACES")
    return LauncherHeartbeat(int(text), own_addresses(interfaces), size) if int(text) else None


def describe_mpi(options: Options, size: int, hosts: list[Host] | None) -> str:
    """Returns the shell line that `run_mpi` would run."""
    return shell_text(make_line(find_mpirun(options.mpirun), options, size, hosts, "perseus-job"), options)


def make_line(
    mpirun: Mpirun, options: Options, size: int, hosts: list[Host] | None, job_name: str, heartbeat: str = ""
) -> Line:
    """Returns the command line of the job for this mpirun. `heartbeat` is `LauncherHeartbeat.text`."""
    most = max((host.slots for host in hosts), default=size) if hosts else size
    environment = job_environment(os.environ, options, job_name, most)
    environment = with_own_folder(environment, mpirun.path)
    if heartbeat:
        environment[HEARTBEAT] = heartbeat
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
        is_oversubscribed=most > usable_cores(),  # assumes that other hosts have as many cores as this one
        is_root=os.geteuid() == 0,
    )
    return _DIALECTS[mpirun.family](mpirun.path, plan)


def _wrapped(command: list[str], tag: str) -> list[str]:
    return [sys.executable, "-IS", str(Path(rank_main.__file__).absolute()), tag, json.dumps(command)]


def _ssh_args(options: Options) -> list[str]:
    args = ["-p", str(options.ssh_port)] if options.ssh_port else []
    return args + (["-i", options.ssh_identity_file] if options.ssh_identity_file else [])


def shell_text(line: Line, options: Options) -> str:
    """Returns the line for a shell, with the variables that differ from this environment. Secrets are masked."""
    return shell_line(line.environment, os.environ, {HEARTBEAT, *forwarded_values(options)}, line.argv)


def _sorter(family: Family, tag: str, channel_of: ChannelOf) -> MarkedOutput:
    match family:
        case Family.MPICH | Family.INTEL:
            return hydra_output(tag, channel_of)
        case Family.OPEN_MPI_4:
            return open_mpi_output("", channel_of)
        case Family.OPEN_MPI_5:
            return open_mpi_output(" ", channel_of)


class _Channels:
    """The channels of all ranks for one stream. A channel is created with the rank's first output."""

    def __init__(self, screen: Screen, name: str, filter_of: Callable[[int], StatusFilter]) -> None:
        self._screen = screen
        self._name = name
        self._filter_of = filter_of
        self._channels: dict[int | None, Channel] = {}

    def __call__(self, rank: int | None) -> Channel:
        if rank not in self._channels:
            status_filter = self._filter_of(rank) if rank is not None and self._name == "stderr" else None
            self._channels[rank] = self._screen.channel(rank, self._name, status_filter)
        return self._channels[rank]
