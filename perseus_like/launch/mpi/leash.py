"""The connection of each rank's `rank_main` to perseusrun: whichever side is lost, the other notices.

A rank whose connection breaks without a goodbye has vanished, whatever mpirun makes of it. A `rank_main` that has lost
perseusrun ends its rank. Both kernels keep asking each other whether they are still there, so a host that is down or
cut off counts as lost, too, after `PERSEUS_HEARTBEAT_TIMEOUT`; a process that is stopped or busy does not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
from collections.abc import Callable

from ..addresses import own_addresses
from ..supervise import Supervisor
from ..verdict import Failure
from .rank_main import GOODBYE, set_heartbeat

DEFAULT_TIMEOUT_SECONDS = 30
_LONGEST_HELLO = 1024
_ENDED = "vanished without a word: its host has crashed, or somebody has killed the job's processes there"
_UNREACHABLE = (
    "does not answer any more: its host is down, or cut off from the network (no answer within "
    "PERSEUS_HEARTBEAT_TIMEOUT)"
)
_SILENCE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


class Leashes:
    """perseusrun's end of all connections. `text` is for the environment of `rank_main`, and a secret."""

    def __init__(self, timeout_seconds: int, interfaces: str | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._asked, self._answer = secrets.token_hex(16), secrets.token_hex(16)
        self._listener = _listen()
        port = self._listener.getsockname()[1]
        fields = [timeout_seconds, self._asked, self._answer, port, *own_addresses(interfaces)]
        self.text = " ".join(map(str, fields))

    def watch(self, supervisor: Supervisor, fail: Callable[[Failure], None]) -> None:
        """From now on `supervisor` looks after the connections, and `fail` hears of ranks that vanish."""
        self._supervisor = supervisor
        self._fail = fail
        supervisor.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        connection.setblocking(False)
        leash = _Leash(connection, self._asked)
        self._supervisor.watch(connection, lambda: self._hear(leash))

    def _hear(self, leash: _Leash) -> None:
        problem: OSError | None = None
        try:
            data = leash.connection.recv(_LONGEST_HELLO)
        except BlockingIOError:
            return
        except OSError as error:
            data, problem = b"", error
        if data and leash.take(data):
            if leash.is_new:
                leash.is_new = False
                set_heartbeat(leash.connection, self._timeout_seconds)
                with contextlib.suppress(OSError):
                    leash.connection.send(self._answer.encode())
            return
        self._supervisor.forget(leash.connection)
        leash.connection.close()
        if leash.who and not leash.has_left:
            self._lose(leash, problem)

    def _lose(self, leash: _Leash, problem: OSError | None) -> None:
        # mpirun ends all ranks when it has lost some. Those of this host end with it, so others are the first.
        if self._supervisor.is_stopping or leash.host == os.uname().nodename:
            return
        how = _UNREACHABLE if problem and problem.errno in _SILENCE else _ENDED
        self._fail(Failure(leash.who, how, 1, True, lambda: False))


class _Leash:
    """One connection. Its first line must be the secret, the rank and its host."""

    def __init__(self, connection: socket.socket, asked: str) -> None:
        self.connection = connection
        self._asked = asked
        self._hello = b""
        self.who = ""
        self.host = ""
        self.is_new = False  # has just said its hello
        self.has_left = False

    def take(self, data: bytes) -> bool:
        """The next bytes; False if they come from a stranger."""
        if self.who:
            self.has_left = self.has_left or data.endswith(GOODBYE)
            return True
        self._hello += data
        line, newline, rest = self._hello.partition(b"\n")
        if not newline:
            return len(self._hello) < _LONGEST_HELLO
        try:
            secret, rank, host = line.decode().split()
        except ValueError:
            return False
        if not secrets.compare_digest(secret, self._asked):
            return False
        self.who, self.host, self.is_new = f"rank {rank} on {host}", host, True
        self.has_left = rest.endswith(GOODBYE)
        return True


def _listen() -> socket.socket:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    return socket.create_server(
        ("", 0), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=family == socket.AF_INET6
    )
