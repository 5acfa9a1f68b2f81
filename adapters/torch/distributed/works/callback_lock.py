"""A lock for callbacks of futures, which run on several threads. Hooks that share data with one another rely on it.

Only one callback runs at a time. A callback that waits for a work or a future lets others run meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger("perseus_like")
# A callback may wait for another one by means that this module does not see.
_PATIENCE_SECONDS = 30.0


class _OfThread(threading.local):
    held = False  # looking up a missing attribute takes longer


class CallbackLock:
    """A fair lock: threads get it in the order of their requests. A wait for it ends after `patience_seconds`."""

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience = patience_seconds
        self._lock = threading.Lock()  # guards the following attributes
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()
        self.mine = _OfThread()  # whether this thread holds the lock

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Holds the lock while a callback runs. A callback within a callback uses the same lock."""
        if self.mine.held:
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def lend(self, wait: Callable[..., T], *arguments: Any) -> T:
        """Calls `wait`. Inside a callback, other callbacks may run meanwhile."""
        if not self.mine.held:
            return wait(*arguments)
        self._give_back()
        try:
            return wait(*arguments)
        finally:
            self._take()

    def _take(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = self.mine.held = True
                return
            notified = threading.Event()
            self._waiting.append(notified)
        if not notified.wait(self._patience):
            with self._lock:
                if not notified.is_set():
                    self._waiting.remove(notified)
                    _log.warning(
                        "a callback has kept the others waiting for %g s; they now run beside it", self._patience
                    )
                    return
        self.mine.held = True

    def _give_back(self) -> None:
        if not self.mine.held:  # the wait for the lock had ended without it
            return
        self.mine.held = False
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


callback_lock = CallbackLock()
