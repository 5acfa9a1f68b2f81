"""The launcher heartbeat: a connection between perseusrun and each rank's `rank_main`, so that each end notices when
the other is lost.

A rank whose connection breaks without a shutdown message is lost, whatever mpirun reports. A `rank_main` that loses
perseusrun ends its rank. The kernels of both hosts probe each other, so a host that is down or has lost its network
also counts as lost after `PERSEUS_HEARTBEAT_TIMEOUT`; a process that is stopped or busy does not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import socket
from collections.abc import Callable, Iterable

from ...protocol.authentication import AuthenticatedListener, new_secret
from ..addresses import listen_at
from ..processes.first_failure import Failure
from ..processes.supervise import Supervisor
from .rank_main import COMMAND_OF, CONTINUE, PAUSE, SHUTDOWN, set_keepalive

DEFAULT_TIMEOUT_SECONDS = 30
_LONGEST_HELLO = 1024
_MOST_UNREAD = 1 << 16
_ENDED = "ended without a report: its host has crashed, or the job's processes there were killed"
_UNREACHABLE = (
    "does not answer any more: its host is down, or has lost its network (no answer within PERSEUS_HEARTBEAT_TIMEOUT)"
)
_SILENCE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


class LauncherHeartbeat:
    """perseusrun's end of the connections to `size` ranks.

    It listens at the given addresses only, until all ranks are connected; with `is_open`, as long as the job runs.
    `text` holds the secret and the addresses for the environment of `rank_main`. With no address there is no heartbeat,
    and `text` is empty.
    """

    def __init__(self, timeout_seconds: int, addresses: list[str], size: int, is_open: bool = False) -> None:
        self._timeout_seconds = timeout_seconds
        self._absent = size
        self._is_open = is_open
        self._owed = b""  # commands for ranks that are not connected yet
        self._ranks: list[_RankConnection] = []
        listeners = listen_at(addresses)
        secret = new_secret()
        self._listener = AuthenticatedListener(listeners, secret, expected=size * len(listeners))
        endpoints = [f"{address} {port}" for address, port, *_ in (each.getsockname() for each in listeners)]
        self.text = " ".join([str(timeout_seconds), secret, *endpoints]) if endpoints else ""

    def watch(
        self,
        supervisor: Supervisor,
        fail: Callable[[int, Failure], None],
        report: Callable[[int, bytes], None],
        signals: Iterable[signal.Signals] = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT),
    ) -> None:
        """Makes `supervisor` serve the connections.

        `fail` is called with each rank that is lost and its failure, and `report` with a rank and each of its status
        lines. The ranks get `signals` over the connections.
        """
        self._supervisor = supervisor
        self._fail = fail
        self._report = report
        supervisor.watch(self._listener, self._accept)
        supervisor.pause.before.append(lambda: self.send_to_all(PAUSE))
        supervisor.pause.after.append(lambda: self.send_to_all(CONTINUE))
        for signum in signals:
            supervisor.forwarders[signum] = functools.partial(self._forward, signum)

    def _accept(self) -> None:
        for connection in self._listener.accept():
            with contextlib.suppress(OSError):
                set_keepalive(connection, self._timeout_seconds)
            rank = _RankConnection(connection)
            self._ranks.append(rank)
            self._supervisor.watch(connection, functools.partial(self._read, rank))

    def send_to_all(self, command: bytes) -> None:
        """Sends a command to every `rank_main`."""
        for rank in self._ranks:
            rank.send(command)

    def _forward(self, signum: signal.Signals) -> None:
        """Sends a signal to the ranks, since it would end an mpirun. Ranks that are not connected yet get it later.

        If further ranks may come at any time, they have not been meant.
        """
        if not self._is_open:
            self._owed += COMMAND_OF[signum]
        for rank in self._ranks:
            if rank.name:
                rank.send(COMMAND_OF[signum])

    def _read(self, rank: _RankConnection) -> None:
        problem: OSError | None = None
        try:
            data = rank.connection.recv(_LONGEST_HELLO)
        except BlockingIOError:
            return
        except OSError as error:
            data, problem = b"", error
        was_known = bool(rank.name)
        if data and rank.take(data):
            if rank.name and not was_known:
                self._count_in()
                # These signals came before the rank was connected. mpirun may have dropped the one to end the job.
                end = self._supervisor.stopped_by
                if commands := self._owed + (COMMAND_OF[end] if end else b""):
                    rank.send(commands)
            for line in rank.reports():
                self._report(rank.number, line)
            return
        self._supervisor.forget(rank.connection)
        self._ranks.remove(rank)
        rank.connection.close()
        if rank.name and not rank.has_left:
            self._lose(rank, problem)

    def _count_in(self) -> None:
        self._absent -= 1
        if self._absent == 0 and not self._is_open:
            self._supervisor.forget(self._listener)
            self._listener.close()

    def _lose(self, rank: _RankConnection, problem: OSError | None) -> None:
        # mpirun ends all ranks if it has lost some. The ranks of this host end with mpirun, so they are not the cause.
        if self._supervisor.is_stopping or rank.host == os.uname().nodename:
            return
        how = _UNREACHABLE if problem and problem.errno in _SILENCE else _ENDED
        self._fail(rank.number, Failure(rank.name, how, 1, True))


class _RankConnection:
    """One connection whose handshake is complete. Its first line names the rank and its host.

    A `rank_main` that reaches several addresses sends this line on one connection only.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.name = ""
        self.number = -1
        self.host = ""
        self.has_left = False
        self._received = b""

    def send(self, command: bytes) -> None:
        """Sends a command, unless the connection has broken."""
        with contextlib.suppress(OSError):
            self.connection.send(command, socket.MSG_NOSIGNAL)

    def take(self, data: bytes) -> bool:
        """Takes received bytes; returns False if they are not what a `rank_main` sends."""
        self._received += data
        if not self.name:
            line, newline, rest = self._received.partition(b"\n")
            if not newline:
                return len(self._received) < _LONGEST_HELLO
            try:
                rank, host = line.decode().split()
                self.number = int(rank)
            except ValueError:
                return False
            self.name, self.host = f"rank {rank} on {host}", host
            self._received = rest
        self.has_left = self.has_left or self._received.endswith(SHUTDOWN)
        return len(self._received) < _MOST_UNREAD

    def reports(self) -> list[bytes]:
        """Returns the status lines that have arrived since the last call."""
        *lines, self._received = self._received.split(b"\n")
        return [line + b"\n" for line in lines]
