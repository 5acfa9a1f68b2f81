"""The standard input of a `host_main`: its plan, and for the one that starts rank 0, the launcher's input behind it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

from ..local import is_in_background, stdin_of
from ..processes.supervise import Supervisor
from .host_main import LENGTH_DIGITS

_BLOCK = 1 << 16
_BACKGROUND_SECONDS = 1.0  # between two looks at whether the launcher is in the foreground again


class HostInput:
    """Writes without blocking. An input without rank 0 stays open as long as this process runs."""

    def __init__(self, supervisor: Supervisor, plan: Mapping[str, object], has_rank_0: bool) -> None:
        self._supervisor = supervisor
        self._has_rank_0 = has_rank_0
        self._is_source_read = has_rank_0 and stdin_of(0) is None
        text = json.dumps(plan).encode()
        self._pending = f"{len(text):{LENGTH_DIGITS}}".encode() + text
        self._end, self.hosts_end = socket.socketpair()
        self._end.setblocking(False)
        supervisor.watch(self._end, self._write, is_output=True)

    def close(self) -> None:
        """Closes the input, at whose end the process ends its ranks."""
        if self._supervisor.watches(self._end):
            self._supervisor.forget(self._end)
        if self._is_source_read and self._supervisor.watches(0):
            self._supervisor.forget(0)
        self._end.close()

    def _read_again(self) -> None:
        if self._end.fileno() != -1:
            self._supervisor.watch(0, self._read)

    def _write(self) -> None:
        try:
            self._pending = self._pending[self._end.send(self._pending, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return
        except OSError:  # the process has ended
            self._supervisor.forget(self._end)
            return
        if self._pending:
            return
        self._supervisor.forget(self._end)
        if self._is_source_read:
            self._supervisor.watch(0, self._read)
        elif self._has_rank_0:
            self._end.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        self._supervisor.forget(0)
        if is_in_background():
            self._supervisor.later(_BACKGROUND_SECONDS, self._read_again)
            return
        self._pending = os.read(0, _BLOCK)
        self._is_source_read = bool(self._pending)
        if self._pending:
            self._supervisor.watch(self._end, self._write, is_output=True)
        else:
            self._end.shutdown(socket.SHUT_WR)
