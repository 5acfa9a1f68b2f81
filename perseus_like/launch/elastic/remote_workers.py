"""Starts workers of an elastic job on several hosts: each one over ssh, as the ranks of other jobs (`launch/ssh`).

A worker survives the loss of others, also of those on other hosts, since UCX connects the workers. It connects to this
launcher over TCP. A host is lost when its remote shell ends, or when the launcher heartbeat breaks.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...protocol.authentication import AuthenticatedListener, new_secret
from ...protocol.messages import VARIABLE, LauncherVariable, Reader, encode
from .. import processes
from ..addresses import listen_at
from ..command_line import Options
from ..host_list import is_this_machine
from ..mpi.demultiplex import hydra_output
from ..mpi.rank_main import HEARTBEAT, WORKER
from ..mpi.rank_status import RankStatus, StatusFilter
from ..output import Channel, Screen
from ..preflight import remote_shell
from ..processes.child import Child
from ..processes.first_failure import Failure, RankEvidence
from ..processes.supervise import FAILURE_GRACE_SECONDS, Supervisor
from ..remote import check_seconds, make_heartbeat, reachable_addresses, ssh_args
from ..ssh import SIGNALS, environment_over_ssh, line_on, make_plan
from ..ssh.host_input import HostInput
from ..start_errors import LaunchError
from .started_worker import Worker, WorkerEnd

# Other processes may connect at the same time as the workers.
_EXPECTED_WORKERS = 64
_LONGEST_HELLO = 1024
_VANISHED = "ended without a report: its host has crashed, or the job's processes there were killed"


class RemoteWorkers:
    """A `WorkerStarter`. Workers on this machine start as those on others do, so that signals reach all in one way."""

    def __init__(
        self,
        options: Options,
        supervisor: Supervisor,
        screen: Screen,
        job_name: str,
        workers_per_host: int,
        heartbeat_seconds: int,
    ) -> None:
        self._options = options
        self._supervisor = supervisor
        self._screen = screen
        self._job_name = job_name
        self._shell = remote_shell(options.remote_shell, ssh_args(options), check_seconds(options))
        self._environment = environment_over_ssh(options, job_name, workers_per_host)
        self._status = RankStatus(0, starter=Path(self._shell[0]).name)  # by the numbers of workers
        self._filters: dict[int, StatusFilter] = {}
        self._ends: dict[int, WorkerEnd] = {}  # of workers whose failure is known
        self._connected: dict[int, Callable[[socket.socket, int], bool]] = {}
        self._workers: dict[int, Worker] = {}  # that have not ended
        self._heartbeat = make_heartbeat(options, _EXPECTED_WORKERS, heartbeat_seconds, is_open=True)
        listeners = listen_at(reachable_addresses(options))
        if not listeners:
            raise LaunchError(
                "the workers on other hosts cannot reach this host, which has no address on the given network "
                "interfaces; give others with --network-interfaces"
            )
        self._secret = new_secret()
        self._endpoints = [(str(address), int(port)) for address, port, *_ in (s.getsockname() for s in listeners)]
        self._listener = AuthenticatedListener(listeners, self._secret, expected=_EXPECTED_WORKERS)
        supervisor.watch(self._listener, self._accept)
        self._heartbeat.watch(supervisor, self._lose, self._report, SIGNALS)

    def ranks_per_host(self, members: Sequence[Worker]) -> list[int]:
        """Returns the number of members on each host."""
        hosts = [member.host for member in members]
        return [hosts.count(host) for host in dict.fromkeys(hosts)]

    def start(
        self,
        worker: Worker,
        variables: Mapping[str, str],
        on_connect: Callable[[Worker], None],
        on_end: Callable[[Worker, WorkerEnd], None],
    ) -> None:
        number = worker.number
        self._workers[number] = worker
        self._connected[number] = functools.partial(self._connect, worker, on_connect)
        evidence = RankEvidence(log=self._screen.log_of(number, "stderr"))
        fail = functools.partial(self._fail, worker)
        self._filters[number] = StatusFilter(number, self._job_name, self._status, fail, evidence)
        own = {
            **variables,
            WORKER: str(number),
            HEARTBEAT: self._heartbeat.text,
            VARIABLE: str(LauncherVariable(number, self._secret, self._endpoints)),
        }
        plan = make_plan(self._options, self._job_name, self._environment, {number: own})
        stdin = HostInput(self._supervisor, plan, has_rank_0=number == 0)
        with stdin.hosts_end as its:
            worker.child = self._supervisor.start(
                str(worker),
                line_on(worker.host, self._shell),
                self._environment if is_this_machine(worker.host) else os.environ,
                its.fileno(),
                hydra_output(self._job_name, self._channels(number, "stdout")),
                hydra_output(self._job_name, self._channels(number, "stderr", self._filters[number])),
                # `stdin` stays open until then.
                on_end=lambda child: on_end(worker, self._conclude(worker, child, evidence, stdin)),
                stop_signal=None,  # the workers get the user's signals over the heartbeat
            )

    def _channels(
        self, number: int, name: str, status_filter: StatusFilter | None = None
    ) -> Callable[[int | None], Channel]:
        """Returns the function that returns the channel of the worker, or for None, that of its remote shell."""
        channel = self._screen.channel(number, name, status_filter)
        others = self._screen.channel(None, name)
        return lambda rank: others if rank is None else channel

    # Connections.

    def _accept(self) -> None:
        for connection in self._listener.accept():
            reader = Reader(_LONGEST_HELLO)
            self._supervisor.watch(connection, functools.partial(self._greet, connection, reader))

    def _greet(self, connection: socket.socket, reader: Reader) -> None:
        """Takes the first message of a process, and closes the connection if it is no worker without a connection."""
        try:
            data = connection.recv(_LONGEST_HELLO)
            messages = reader.take(data)
            if data and not messages:
                return
            number, pid = (int(messages[0][key]) for key in ("number", "pid"))
            is_welcome = self._connected[number](connection, pid)
        except BlockingIOError:
            return
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError):
            is_welcome = False
        if not is_welcome:
            self._supervisor.forget(connection)
            connection.close()

    def _connect(
        self, worker: Worker, on_connect: Callable[[Worker], None], connection: socket.socket, pid: int
    ) -> bool:
        if worker.connection is not None:
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.send(encode("welcome"), socket.MSG_NOSIGNAL)
        self._supervisor.forget(connection)
        worker.connection, worker.pid = connection, pid
        on_connect(worker)
        return True

    # Ends.

    def _report(self, number: int, line: bytes) -> None:
        if number in self._filters:
            self._filters[number].take(line)

    def _lose(self, number: int, failure: Failure) -> None:
        """Ends the remote shell to a worker whose heartbeat has broken."""
        worker = self._workers.get(number)
        if worker and worker.child and worker.child.status is None:
            self._ends.setdefault(number, WorkerEnd(failure.code, failure.how, True, failure.evidence))
            processes.send_to_group(worker.child.pid, signal.SIGKILL)

    def _fail(self, worker: Worker, failure: Failure) -> None:
        """Takes the failure that `rank_main` reports. The job decides when the process of the launcher has ended."""
        self._ends[worker.number] = WorkerEnd(failure.code, failure.how, failure.was_killed, failure.evidence)
        if self._supervisor.is_stopping:
            self._supervisor.fail(replace(failure, who=str(worker)), FAILURE_GRACE_SECONDS)

    def _conclude(self, worker: Worker, child: Child, evidence: RankEvidence, stdin: HostInput) -> WorkerEnd:
        assert child.status is not None
        number = worker.number
        stdin.close()
        del self._workers[number], self._connected[number], self._filters[number]
        if number in self._status.succeeded:
            return WorkerEnd(0, "ended", False, evidence)
        if end := self._ends.pop(number, None):
            return end
        if number in self._status.hosts:
            return WorkerEnd(1, _VANISHED, True, evidence)
        how = f"could not be started: {self._status.starter} {processes.describe_exit(child.status)}"
        return WorkerEnd(1, f"{how}; see its messages above", False, evidence)
