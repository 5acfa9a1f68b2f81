"""One worker of an elastic job, as the launcher sees it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field
from typing import Any

from ...protocol.messages import Message, Reader, encode
from ..child import Child


@dataclass
class Worker:
    """`number` counts workers in the order of their starts; `rank` is the one of its last generation.

    A retry is a worker on a host that has failed before. No generation waits for a retry, so a host that fails again
    and again does not hold up the training.
    """

    number: int
    host: str
    slot: int
    connection: socket.socket
    is_retry: bool = False
    reader: Reader = field(default_factory=Reader)
    child: Child | None = None
    is_alive: bool = True
    is_ready: bool = False  # it waits for an assignment
    wants_sync: bool = True
    has_state: bool = False
    joined: int | None = None  # the first generation it was in
    generation: int | None = None  # the last
    rank: int = -1
    is_leaving: bool = False  # its slot is gone, or its host is blacklisted
    is_dismissed: bool = False  # the launcher has asked it to end
    fault: str | None = None  # the reason why the launcher has ended it

    @property
    def is_newcomer(self) -> bool:
        """True if it has not been in any generation."""
        return self.joined is None

    @property
    def is_starting(self) -> bool:
        """True until a newcomer has called `init()`."""
        return self.is_alive and self.is_newcomer and not self.is_ready and not self.is_dismissed

    def send(self, kind: str, **content: Any) -> None:
        """Sends a message. Ignores a broken connection: the supervisor sees the end of the process."""
        with contextlib.suppress(OSError):
            self.connection.send(encode(kind, **content), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def take_messages(self) -> list[Message] | None:
        """Returns the messages since the last call; None once its end is closed. ValueError for an invalid message."""
        try:
            data = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self.reader.take(data) if data else None

    def __str__(self) -> str:
        return f"worker {self.number} on {self.host}"
