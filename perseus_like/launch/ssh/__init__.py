"""Jobs on several hosts whose ranks the launcher starts over ssh, without an MPI. UCX connects the ranks."""

from __future__ import annotations

import functools
import itertools
import os
import random
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from ...protocol.authentication import new_secret
from ...protocol.rank_variables import TCP_RENDEZVOUS
from .. import processes
from ..command_line import Options
from ..environment import forwarded_names, forwarded_values, job_environment, new_job_name, numbers_of_rank
from ..host_list import Host, is_this_machine
from ..mpi.demultiplex import hydra_output
from ..mpi.rank_main import HEARTBEAT
from ..mpi.rank_status import RankStatus
from ..mpi.reports import RankReports
from ..output import NAMES, Screen, Style
from ..output.masking import shell_line
from ..preflight import batch_shell, name_of, remote_shell
from ..processes.child import Child
from ..processes.first_failure import Failure
from ..processes.supervise import FAILURE_GRACE_SECONDS, Ending, Supervisor
from ..remote import (
    check_over_shell,
    check_seconds,
    heartbeat_seconds,
    make_heartbeat,
    reachable_addresses,
    ssh_args,
    start_seconds,
)
from ..start_errors import LaunchError
from . import host_main
from .host_input import HostInput

# After a failure, ranks have this long to end after a SIGTERM, which goes over the network.
TERMINATE_SECONDS = 1.5
ORPHAN_SECONDS = 2.0
_NO_LIMIT_SECONDS = 10**9
# Ports below those that Linux gives to connections. Rank 0 listens at the first free one of several.
_PORTS = range(20_000, 30_000)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def run_over_ssh(options: Options, size: int, hosts: list[Host], reason: str) -> Ending:
    """Runs the job on `hosts`, which have a slot for each rank."""
    shell = _shell(options)
    heartbeat = make_heartbeat(options, size, heartbeat_seconds(options) or _NO_LIMIT_SECONDS)
    if not heartbeat.text:
        raise LaunchError(
            "the ranks of other hosts cannot reach this host, which has no address on the given network interfaces; "
            "give others with --network-interfaces"
        )
    job_name = new_job_name()
    job = _environment(options, hosts, job_name)
    if options.check_hosts:
        library = job.get("PERSEUS_UCX_LIBRARY", "")
        paths = [str(Path.cwd()), *([library] if "/" in library else [])]
        check_over_shell(options, [host.name for host in hosts if not is_this_machine(host.name)], shell, paths)
    screen = Screen(Style.of(options), size)
    for note in options.notes:
        screen.announce(note)
    if options.verbose:
        screen.announce(f"starting the ranks over {name_of(shell)}, without MPI: {reason}")
        for line in describe_ssh(options, hosts):
            screen.announce(line)
    status = RankStatus(size, [host.name for host in hosts for _ in range(host.slots)], name_of(shell))
    with Supervisor(screen, job_name, options.stop_timeout, TERMINATE_SECONDS, ORPHAN_SECONDS) as supervisor:
        reports = RankReports(supervisor, screen, job_name, status, FAILURE_GRACE_SECONDS)
        out, err = (reports.channels(name) for name in NAMES)
        heartbeat.watch(supervisor, lambda rank, failure: reports.fail(failure), reports.take, SIGNALS)
        reports.look_for_absent(heartbeat.send_to_all)
        supervisor.later(start_seconds(options), functools.partial(reports.fail_if_late, start_seconds(options)))
        # The host of rank 0, the port before the first one, and a secret.
        rendezvous = f"{_address_for_others(options, hosts[0].name)} {random.choice(_PORTS)} {new_secret()}"
        secrets = {HEARTBEAT: heartbeat.text, TCP_RENDEZVOUS: rendezvous}
        slots = [host.slots for host in hosts]
        inputs: list[HostInput] = []  # the processes end when their inputs are closed
        for number, host in enumerate(hosts):
            supervisor.serve()
            if supervisor.is_stopping:
                break
            ranks = _ranks_of(hosts, number)
            own = {"HOROVOD_HOSTNAME": host.name}
            variables = {rank: {**numbers_of_rank(rank, slots), **own} for rank in ranks}
            plan = make_plan(options, job_name, {**job, **secrets}, variables)
            inputs.append(HostInput(supervisor, plan, 0 in ranks))
            with inputs[-1].hosts_end as stdin:
                supervisor.start(
                    f"the ranks of {host.name}",
                    line_on(host.name, shell),
                    job if is_this_machine(host.name) else os.environ,
                    stdin.fileno(),
                    hydra_output(job_name, out),
                    hydra_output(job_name, err),
                    on_end=functools.partial(_check_end, host.name, ranks, status, reports),
                    stop_signal=None,  # the ranks get the user's signals over the heartbeat
                )
        is_complete = not supervisor.is_stopping
        code = supervisor.run(missed=status.missed)
        return supervisor.ending(128 + supervisor.stopped_by if supervisor.stopped_by and not is_complete else code)


def _check_end(host: str, ranks: range, status: RankStatus, reports: RankReports, child: Child) -> None:
    """Ends the job if the process that starts the ranks of a host has ended before these."""
    assert child.status is not None
    if status.ended.issuperset(ranks):
        return
    how = processes.describe_exit(child.status)
    if not status.hosts.keys() & set(ranks):
        how = f"could not start any rank: {status.starter} {how}; see its messages above"
    reports.fail(Failure(f"the launcher's process on {host}", how, 1, False))


def describe_ssh(options: Options, hosts: list[Host]) -> list[str]:
    """Returns the shell line that `run_over_ssh` would run for each host, and what this starts."""
    shell = _shell(options)
    job = _environment(options, hosts, "perseus-job")
    command = shell_line(job, os.environ, forwarded_values(options), options.command)
    return [
        f"{shlex.join(line_on(host.name, shell))}  # ranks {','.join(map(str, _ranks_of(hosts, number)))}: {command}"
        for number, host in enumerate(hosts)
    ]


def _shell(options: Options) -> list[str]:
    return batch_shell(options) or remote_shell(options.remote_shell, ssh_args(options), check_seconds(options))


def _environment(options: Options, hosts: list[Host], job_name: str) -> dict[str, str]:
    return environment_over_ssh(options, job_name, max(host.slots for host in hosts))


def environment_over_ssh(options: Options, job_name: str, ranks_per_host: int) -> dict[str, str]:
    """Returns the variables that all ranks of a job over ssh share."""
    job = job_environment(os.environ, options, job_name, ranks_per_host)
    job["PERSEUS_HOST_TRANSPORT"] = job.get("PERSEUS_HOST_TRANSPORT") or "ucx"
    if options.tcp:
        job.setdefault("UCX_TLS", "tcp,self")
    return job


def line_on(host: str, shell: list[str]) -> list[str]:
    """Returns the line that runs `host_main` on a host."""
    line = [sys.executable, "-IS", str(Path(host_main.__file__).absolute())]
    return line if is_this_machine(host) else [*shell, host.strip("[]"), f"exec {shlex.join(line)}"]


def _ranks_of(hosts: list[Host], number: int) -> range:
    first = sum(host.slots for host in hosts[:number])
    return range(first, first + hosts[number].slots)


def make_plan(
    options: Options, job_name: str, environment: Mapping[str, str], ranks: Mapping[int, Mapping[str, str]]
) -> dict[str, object]:
    """Returns what `host_main` needs to start these ranks, each with variables of its own."""
    names = forwarded_names(environment, (name for name, _ in options.forward))
    return {
        "tag": job_name,
        "folder": str(Path.cwd()),
        "command": options.command,
        "environment": {name: environment[name] for name in names},
        "ranks": [*ranks.items()],
    }


def _address_for_others(options: Options, host: str) -> str:
    """Returns an address of this machine if `host` is a name of it, which others may not know. Else, returns `host`."""
    if not is_this_machine(host):
        return host.strip("[]")
    own = reachable_addresses(options)
    try:
        named = [str(address[0]) for *_, address in socket.getaddrinfo(host.strip("[]"), None)]
    except OSError:
        named = []
    return next(itertools.chain((each for each in named if each in own), own), "127.0.0.1")
