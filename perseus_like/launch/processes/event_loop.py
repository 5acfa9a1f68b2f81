"""The launcher's event loop: it waits for descriptors and for points in time, in one thread."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Protocol


class HasFileno(Protocol):
    """A socket, or another object that can be polled."""

    def fileno(self) -> int: ...


class EventLoop:
    """Calls functions when a descriptor is ready, and when a time has come."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()
        self._agenda: list[tuple[float, Callable[[], None]]] = []

    def watch(self, source: HasFileno | int, act: Callable[[], object], is_output: bool = False) -> None:
        """Calls `act` whenever `source` can be read, or with `is_output`, written."""
        self._selector.register(source, selectors.EVENT_WRITE if is_output else selectors.EVENT_READ, act)

    def forget(self, source: HasFileno | int) -> None:
        """Ends what `watch` has started."""
        self._selector.unregister(source)

    def watches(self, source: HasFileno | int) -> bool:
        """Returns True if `source` is watched."""
        return source in self._selector.get_map()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` once, after this time."""
        self._agenda.append((time.monotonic() + seconds, action))

    def postpone(self, seconds: float) -> None:
        """Postpones all actions of `later` by this time."""
        self._agenda = [(when + seconds, action) for when, action in self._agenda]

    def wait(self, longest: float | None) -> bool:
        """Waits until a descriptor is ready or an action is due, and calls the functions of the descriptors.

        Returns False if no descriptor was ready. `longest` limits the wait, in seconds.
        """
        waits = [when - time.monotonic() for when, _ in self._agenda]
        if longest is not None:
            waits.append(longest)
        events = self._selector.select(max(0.0, min(waits)) if waits else None)
        for key, _ in events:
            # A function before it may have ended the watch, and closed the descriptor.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        return bool(events)

    def run_due(self) -> None:
        """Calls the actions whose time has come."""
        now = time.monotonic()
        due = [action for when, action in self._agenda if when <= now]
        self._agenda = [entry for entry in self._agenda if entry[0] > now]
        for action in due:
            action()

    def close(self) -> None:
        """Forgets everything."""
        self._selector.close()
