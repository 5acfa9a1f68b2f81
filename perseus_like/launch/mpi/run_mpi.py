"""Jobs through mpirun."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...host_facts import installed_version, usable_cores
from ..command_line import Options
from ..environment import forwarded_names, forwarded_values, job_environment, new_job_name
from ..host_list import Host, is_this_machine
from ..output import NAMES, Screen, Style
from ..output.masking import shell_line
from ..preflight import Wanted, batch_shell, check_allocation, remote_shell
from ..processes.first_failure import Failure, RankEvidence
from ..processes.supervise import Ending, Supervisor
from ..remote import check_over_shell, check_seconds, heartbeat_seconds, make_heartbeat, ssh_args, start_seconds
from . import Line, Plan, hydra, open_mpi, rank_main
from .demultiplex import ChannelOf, MarkedOutput, hydra_output, open_mpi_output
from .family import Family, Mpirun, find_mpirun, with_own_folder
from .rank_main import HEARTBEAT
from .rank_status import RankStatus
from .reports import RankReports

# mpirun ends the job by itself about a second after a rank has failed (rank_main.py). Otherwise perseusrun ends it now.
FAILURE_GRACE_SECONDS = 1.5
# Open MPI 4 takes 3 s to end the job if ranks ignore SIGTERM. It crashes if it gets a signal meanwhile.
OPEN_MPI_4_GRACE_SECONDS = 5.0
# mpirun needs time to clean up other hosts. If it cannot, ranks there notice by themselves (heartbeat.py).
TERMINATE_SECONDS = 3.0
ORPHAN_SECONDS = 2.0

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


def run_mpi(options: Options, size: int, hosts: list[Host] | None) -> Ending:
    """Runs the job through mpirun."""
    mpirun = find_mpirun(options.mpirun)
    if hosts and options.check_hosts:
        _check_hosts(mpirun, options, hosts)
    job_name = new_job_name()
    seconds = heartbeat_seconds(options)
    heartbeat = make_heartbeat(options, size, seconds) if seconds else None
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
        reports = RankReports(supervisor, screen, job_name, status, grace)

        def lose(rank: int, failure: Failure) -> None:
            # If mpirun cannot start a rank, it ends those that run: they are lost, but they have not failed first.
            is_certain = status.have_all_begun()
            reports.fail(
                failure
                if is_certain
                else replace(failure, was_killed=False, evidence=RankEvidence(blames_another=True))
            )

        out, err = (_sorter(mpirun.family, job_name, reports.channels(name)) for name in NAMES)
        if heartbeat:
            heartbeat.watch(supervisor, lose, reports.take)
        supervisor.later(start_seconds(options), functools.partial(reports.fail_if_late, start_seconds(options)))
        supervisor.serve()
        is_started = not supervisor.is_stopping
        if is_started:
            supervisor.start("mpirun", line.argv, line.environment, None, out, err, RankEvidence(blames_another=True))
        code = supervisor.run(missed=status.missed)
        # Open MPI returns 1 after any signal.
        return supervisor.ending(
            128 + supervisor.stopped_by if supervisor.stopped_by and (code or not is_started) else code
        )


def _check_hosts(mpirun: Mpirun, options: Options, hosts: list[Host]) -> None:
    names = [host.name for host in hosts if not is_this_machine(host.name)]
    if not names:
        return  # a machine may have no ssh
    seconds = check_seconds(options)
    paths = [str(mpirun.path), str(Path.cwd())]
    if options.is_batch:
        if shell := batch_shell(options):
            everywhere = [host.name for host in hosts]
            note = check_allocation(everywhere, shell, Wanted(installed_version(), paths), seconds)
            options.notes += [note] if note else []
        return
    given = options.remote_shell or next((os.environ[name] for name in _REMOTE_SHELLS if os.environ.get(name)), None)
    check_over_shell(options, names, remote_shell(given, ssh_args(options), seconds), paths)


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
    rank = [sys.executable, "-IS", str(Path(rank_main.__file__).absolute())]
    plan = Plan(
        size=size,
        hosts=hosts,
        command=[*rank, job_name, json.dumps(options.command)],
        environment=environment,
        forward=forwarded_names(environment, (name for name, _ in options.forward)),
        tag=job_name,
        remote_shell=options.remote_shell,
        ssh_args=ssh_args(options),
        interfaces=options.nics,
        tcp=options.tcp,
        binding=options.binding_args,
        extra=options.mpi_args,
        is_oversubscribed=most > usable_cores(),  # assumes that other hosts have as many cores as this one
        is_root=os.geteuid() == 0,
    )
    return _DIALECTS[mpirun.family](mpirun.path, plan)


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
