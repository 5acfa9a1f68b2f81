"""Runs an elastic job."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from ..choice import asks_for_several_hosts, choose_start
from ..command_line import Options
from ..environment import job_environment, new_job_name, user_variables
from ..host_list import Host, is_this_machine
from ..output import Screen, Style
from ..processes.first_failure import Failure
from ..processes.supervise import Supervisor
from ..start_errors import LaunchError
from . import read_settings
from .cluster import ORPHAN_SECONDS, TERMINATE_SECONDS, ClusterJob
from .discovery import Discovery, find_script
from .job import ElasticJob
from .local_workers import LocalWorkers
from .remote_workers import RemoteWorkers


def run_elastic(options: Options, hosts: list[Host] | None) -> int:
    """Runs the job on `hosts`, or on those that the discovery script names; returns the exit code."""
    settings = read_settings(options)
    script = None if options.host_discovery_script is None else find_script(options.host_discovery_script)
    if script is None and hosts is None:
        hosts = [Host("localhost", settings.start_np)]
    job_name = new_job_name()
    # OMP_NUM_THREADS is computed for the largest known number of workers on this machine.
    most = settings.max_np or max(settings.start_np, sum(host.slots for host in hosts or []))
    environment = job_environment(os.environ, options, job_name, most)
    screen = Screen(Style.of(options), most)
    for note in options.notes:
        screen.announce(note)
    with Supervisor(screen, job_name, options.stop_timeout, TERMINATE_SECONDS, ORPHAN_SECONDS) as supervisor:

        def job_on(here: bool, hosts: list[Host]) -> Job:
            if here:
                local = LocalWorkers(options.command, supervisor, screen, environment)
                return ElasticJob(local, settings, supervisor, screen)
            seconds = heartbeat_seconds(options)
            reason = _reason_for_ssh(options)
            if reason is None:
                return ClusterJob(options, settings, supervisor, screen, os.environ, float(seconds))
            if options.verbose:
                screen.announce(f"starting the workers over ssh, without MPI: {reason}")
            per_host = max(host.slots for host in hosts)
            remote = RemoteWorkers(options, supervisor, screen, job_name, per_host, seconds)
            return ElasticJob(remote, settings, supervisor, screen)

        finder = _Finder(job_on, asks_for_several_hosts(options), settings.timeout, supervisor, screen)
        if script is not None:
            slots, interval = settings.slots_per_host, settings.discovery_interval
            callbacks = (finder.found, finder.failed, screen.announce)
            Discovery(script, slots, interval, supervisor, environment, *callbacks).look()
        else:
            supervisor.later(0.0, lambda: finder.found(hosts or []))
        code = supervisor.run(is_over=finder.is_over)
        return 128 + supervisor.stopped_by if supervisor.stopped_by and not code else code


def _reason_for_ssh(options: Options) -> str | None:
    """Returns why workers start over ssh, with UCX between them; None if an mpirun starts them."""
    try:
        uses_mpirun, reason = choose_start(options, 2)  # others may join a single host
    except LaunchError:  # there is neither; the first generation reports it
        return None
    return None if uses_mpirun else reason


class Job(Protocol):
    """An elastic job, on this machine or on several."""

    def take_hosts(self, hosts: list[Host]) -> None:
        """Replaces the list of hosts."""

    def is_over(self) -> bool:
        """Returns True if no worker lives, and none will be started."""


class _Finder:
    """Passes the results of host discovery to the job, whose kind depends on the first hosts.

    If the first run of the script fails, the job ends. A later failure keeps the known hosts.
    """

    def __init__(
        self,
        job_on: Callable[[bool, list[Host]], Job],
        may_grow: bool,
        timeout: float,
        supervisor: Supervisor,
        screen: Screen,
    ) -> None:
        self._job_on = job_on
        self._may_grow = may_grow
        self._supervisor = supervisor
        self._screen = screen
        self._job: Job | None = None
        self._stays_here = False
        self._last_trouble = ""
        self._is_here: dict[str, bool] = {}
        supervisor.later(timeout, self._stop_waiting)

    def _stop_waiting(self) -> None:
        if self._job is None:
            self.failed("it has printed no host within --elastic-timeout")

    def is_over(self) -> bool:
        return self._job.is_over() if self._job else self._supervisor.is_stopping

    def found(self, hosts: list[Host]) -> None:
        self._last_trouble = ""
        if self._job is None:
            if not hosts:  # later runs may find hosts
                return
            self._stays_here = not self._may_grow and all(self._is_this_machine(host.name) for host in hosts)
            self._job = self._job_on(self._stays_here, hosts)
        if self._stays_here:
            hosts = [host for host in hosts if self._is_this_machine(host.name)]
        self._job.take_hosts(hosts)

    def _is_this_machine(self, name: str) -> bool:
        if name not in self._is_here:
            self._is_here[name] = is_this_machine(name)
            if self._job and not self._is_here[name]:
                self._screen.announce(
                    f"{name} is another machine and is not used, since the job has started on this machine alone; "
                    "give -x PERSEUS_HOST_TRANSPORT=ucx, or --mpi, if the script may print other machines"
                )
        return self._is_here[name]

    def failed(self, text: str) -> None:
        if self._job is None:
            self._supervisor.fail(Failure("the host discovery script", f"gave no hosts: {text}", 1, False), 0.0)
        elif text != self._last_trouble:
            self._screen.announce(f"the host discovery script gave no hosts; the known hosts stay: {text}")
            self._last_trouble = text


def heartbeat_seconds(options: Options) -> int:
    """Returns the time without an answer after which a host counts as lost."""
    given = user_variables(os.environ, options).get("PERSEUS_HEARTBEAT_TIMEOUT") or "30"
    if not given.isdecimal() or int(given) < 1:
        raise LaunchError(f"PERSEUS_HEARTBEAT_TIMEOUT={given!r}: an elastic job needs a number of seconds, at least 1")
    return int(given)
