"""Messages of the launcher to a worker: its assignment in a generation, and updates of the hosts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Protocol

from ..errors import UnavailableError


@dataclass(frozen=True)
class Assignment:
    """A worker's assignment in one generation: its rank, and what `session.start` needs.

    If there is no `exchange`, MPI assigns rank and size: they are -1 until the session has started.
    """

    generation: int
    sync: bool  # some member has no state, or a different one
    rank: int = -1
    size: int = -1
    ranks_per_host: Sequence[int] = ()  # in the order of the ranks; empty without an `exchange`
    has_newcomers: bool = False  # some member joins for the first time
    exchange: Callable[[bytes], list[bytes]] | None = None
    cancel_fd: int = -1  # a descriptor that becomes readable when another member has ended

    @property
    def rendezvous(self) -> tuple[int, int, Callable[[bytes], list[bytes]]] | None:
        """The `rendezvous` parameter of `session.start`."""
        return None if self.exchange is None else (self.rank, self.size, self.exchange)


class HostUpdateResult(IntFlag):
    """The kind of a change of the hosts: some were added, some were removed, or both."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None: ...


class WorkerNotificationManager:
    """Passes host updates on to the registered states. Its one instance is `notification_manager`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the lists: updates arrive on threads of their own
        self._listeners: list[Listener] = []
        self._unheard: list[tuple[int, HostUpdateResult]] = []  # updates that came while there was no listener
        self.on_commit: Callable[[Any], None] | None = None  # called with the state, once it is saved
        # A state that is reset drops updates up to this time; the new session was formed with them.
        self.known_until = math.inf

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Does nothing: perseusrun delivers the host updates of an elastic job without a server."""
        if rendezvous_addr is not None:
            raise UnavailableError(
                "WorkerNotificationManager.init(rendezvous_addr=…): there is no notification server to connect to; "
                "start the job with perseusrun, which delivers host updates itself, and omit the address"
            )

    def register_listener(self, listener: Listener) -> None:
        """Adds a listener. The first one gets the updates that came since the session's start."""
        with self._lock:
            self._listeners.append(listener)
            unheard, self._unheard = self._unheard, []
        for timestamp, update_res in unheard:
            if timestamp > self.known_until:
                listener.on_hosts_updated(timestamp, update_res)

    def remove_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = [each for each in self._listeners if each is not listener]

    def handle_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        with self._lock:
            listeners = list(self._listeners)
            if not listeners:
                self._unheard.append((timestamp, update_res))
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
