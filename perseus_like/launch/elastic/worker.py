"""One worker of an elastic job, as the launcher sees it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field
from typing import Any

from ..child import Child
from .messages import Message, Reader, encode


@dataclass
class Worker:
    """`number` counts workers in the order of their starts; ranks are of a generation."""

    number: int
    host: str
    slot: int
    connection: socket.socket
    reader: Reader = field(default_factory=Reader)
    child: Child | None = None
    is_alive: bool = True
    is_ready: bool = False  # it waits for a place
    wants_sync: bool = True
    has_state: bool = False
    joined: int | None = None  # the first generation it was in
    generation: int | None = None  # the last
    rank: int = -1
    is_leaving: bool = False  # its slot is gone
    is_dismissed: bool = False  # it was told to end
    fault: str | None = None  # for which the launcher has ended it

    @property
    def is_newcomer(self) -> bool:
        """It has not been in any generation."""
        return self.joined is None

    def tell(self, kind: str, **content: Any) -> None:
        """A worker that cannot be told anything ends soon, or has ended; that is seen otherwise."""
        with contextlib.suppress(OSError):
            self.connection.send(encode(kind, **content), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def heard(self) -> list[Message] | None:
        """What it has said since the last look; None once its end is closed. ValueError for what is no message."""
        try:
            data = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self.reader.take(data) if data else None

    def __str__(self) -> str:
        return f"worker {self.number} on {self.host}"
