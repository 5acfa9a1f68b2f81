"""One worker of an elastic job, as the launcher sees it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...protocol.messages import Message, Reader, encode
from ..processes.child import Child
from ..processes.first_failure import RankEvidence


@dataclass
class Worker:
    """`number` counts workers in the order of their starts; `rank` is the one of its last generation.

    A retry is a worker on a host that has failed before. No generation waits for a retry, so a host that fails again
    and again does not hold up the training.
    """

    number: int
    host: str
    slot: int
    is_retry: bool = False
    connection: socket.socket | None = None
    pid: int | None = None  # once it is known
    reader: Reader = field(default_factory=Reader)
    unsent: bytes = b""
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
        """Sends a message. `unsent` has what the connection does not take now; `send_rest` tries again.

        Ignores a broken connection: the supervisor sees the end of the process.
        """
        self.unsent += encode(kind, **content)
        self.send_rest()

    def send_rest(self) -> None:
        """Sends as much as the connection takes."""
        try:
            while self.connection and self.unsent:
                sent = self.connection.send(self.unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self.unsent = self.unsent[sent:]
        except BlockingIOError:
            return
        except OSError:
            self.unsent = b""

    def take_messages(self) -> list[Message] | None:
        """Returns the messages since the last call; None once its end is closed. ValueError for an invalid message."""
        if self.connection is None:
            return None
        try:
            data = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self.reader.take(data) if data else None

    def __str__(self) -> str:
        return f"worker {self.number} on {self.host}"


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker's process."""

    code: int
    how: str
    was_killed: bool
    evidence: RankEvidence


class WorkerStarter(Protocol):
    """Starts the processes of workers, on this machine or on several."""

    def ranks_per_host(self, members: Sequence[Worker]) -> list[int]:
        """Returns the number of members on each host, in the order of the ranks. `members` are in this order, too."""

    def start(
        self,
        worker: Worker,
        variables: Mapping[str, str],
        on_connect: Callable[[Worker], None],
        on_end: Callable[[Worker, WorkerEnd], None],
    ) -> None:
        """Starts a worker with these variables, and sets its `child`.

        `on_connect` is called once the worker has a connection, and `on_end` when its process has ended.
        """
