"""The launcher's end of the connection to the state agent of one host."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from ...protocol.agent_protocol import MARK
from ...protocol.messages import Message, Reader, encode
from ..processes.child import Child

_LONGEST_LINE = 1 << 16


class HostAgent:
    """The state agent of one host. A `Feed` of its output."""

    def __init__(
        self,
        host: str,
        secret: str,
        receive: Callable[[HostAgent, Message], None],
        lose: Callable[[HostAgent], None],
    ) -> None:
        self.host = host
        self.child: Child | None = None
        self.is_here = False
        self.is_lost = False
        self.version: list[int] | None = None
        self.last_message_time = time.monotonic()  # of any message of the agent
        self.foreign_line = ""  # the last line that the remote shell or its start-up files printed
        self._secret = secret
        self._receive = receive
        self._lose = lose
        self._pending = b""
        self._reader = Reader()
        self.input, self._agents_input = socket.socketpair()
        self.input.setblocking(False)

    def begin(self, start: Callable[[int], Child]) -> None:
        """Starts the agent; `start` gets the agent's standard input."""
        with self._agents_input:
            self.child = start(self._agents_input.fileno())
        self.send("hello", secret=self._secret)

    def send(self, kind: str, **content: object) -> None:
        """Sends a message. An agent that has ended misses it."""
        with contextlib.suppress(OSError):
            self.input.send(encode(kind, **content), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def feed(self, data: bytes) -> None:
        """Takes output of the agent, or of the remote shell around it: lines without the mark are not the agent's."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._pending = self._pending[-_LONGEST_LINE:]
        for line in lines:
            foreign, mark, text = line.partition(MARK)
            if not mark:
                self.foreign_line = foreign.decode(errors="replace").strip() or self.foreign_line
                continue
            try:
                for message in self._reader.take(text + b"\n"):
                    self._receive(self, message)
            except (LookupError, TypeError, ValueError):  # an invalid message
                self._lose(self)
                return
            self.last_message_time = time.monotonic()

    def finish(self) -> None:
        """Does nothing: the supervisor reports the agent's end."""
