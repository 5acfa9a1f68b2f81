"""Callbacks take turns, though they run on threads of their own: hooks that share a list with one another rely on it.

What a callback does up to its end, or up to where it waits for a work or a future, is not mixed with what others do.
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
# A callback may wait for another one by means that are not ours.
_PATIENCE_SECONDS = 30.0


class CallbackLock:
    """A lock that is handed on in the order in which threads have asked for it, and not waited for without end."""

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience = patience_seconds
        self._lock = threading.Lock()  # guards what follows
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()
        self._mine = threading.local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """For a callback. One that a callback runs itself has the same turn."""
        if self._is_mine():
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def lend(self, wait: Callable[..., T], *arguments: Any) -> T:
        """Calls `wait`, which may be for what another callback does. Outside of callbacks that is all."""
        if not self._is_mine():
            return wait(*arguments)
        self._give_back()
        try:
            return wait(*arguments)
        finally:
            self._take()

    def _is_mine(self) -> bool:
        return getattr(self._mine, "held", False)

    def _take(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = self._mine.held = True
                return
            told = threading.Event()
            self._waiting.append(told)
        if not told.wait(self._patience):
            with self._lock:
                if not told.is_set():
                    self._waiting.remove(told)
                    _log.warning(
                        "a callback has kept the others waiting for %g s; they go on beside it", self._patience
                    )
                    return
        self._mine.held = True

    def _give_back(self) -> None:
        if not self._is_mine():  # patience had ended
            return
        self._mine.held = False
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


callback_lock = CallbackLock()
