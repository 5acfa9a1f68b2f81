"""Who is told when hosts come or go."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from enum import IntFlag
from typing import Any, Protocol

from ..errors import UnavailableError


class HostUpdateResult(IntFlag):
    """What has happened to the hosts."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None: ...


class WorkerNotificationManager:
    """Passes news about hosts on to the states that listen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the list: news comes on threads of its own
        self._listeners: list[Listener] = []
        self.on_commit: Callable[[Any], None] | None = None  # called with the state, once it is saved
        # A state that is reset forgets news up to here; later news is of changes that the new session does not know.
        self.known_until = math.inf

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Nothing to do: perseusrun brings the news of an elastic job by itself."""
        if rendezvous_addr is not None:
            raise UnavailableError("there is no server for news about hosts; perseusrun brings them by itself")

    def register_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = [each for each in self._listeners if each is not listener]

    def handle_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
