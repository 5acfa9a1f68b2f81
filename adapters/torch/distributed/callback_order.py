"""Names collectives that callbacks of futures start, so that the names are the same on all ranks.

Collectives are matched by number, and each rank counts its calls. A callback runs when its work is complete: on one
rank before the next call of the main thread, on another after it. The collectives of a callback are therefore numbered
within the work of its future: the second collective of the callbacks of #5 is #5.1 on all ranks.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..compat.futures import watch_futures
from ..native_group import native
from .callback_lock import callback_lock


class CallbackOrigin:
    """The work whose future has callbacks: its group and name, and the number of collectives that these started."""

    def __init__(self, group: str, name: str) -> None:
        self._group = group
        self._name = name
        self._counter = itertools.count()

    def next_name(self, group: str) -> str:
        """Returns the name of the next collective. If `group` is another group, the name contains the work's group."""
        of = self._name if group == self._group else f"{self._group}:{self._name}"
        return f"{of}.{next(self._counter)}"


_origins: weakref.WeakKeyDictionary[Any, CallbackOrigin] = weakref.WeakKeyDictionary()


class _OfThread(threading.local):
    origin: CallbackOrigin | None = None


_running = _OfThread()


def current() -> CallbackOrigin | None:
    """Returns the origin of the callback that runs on this thread, or None."""
    return _running.origin


def _set_current(origin: CallbackOrigin | None) -> None:
    _running.origin = origin
    if native is not None:
        native.set_in_callback(origin is not None)


def remember(future: Any, origin: CallbackOrigin) -> None:
    """Sets the origin of the callbacks of `future`, of the futures that its then() returns, and so on."""
    _watch_futures()
    _origins[future] = origin


def _within(origin: CallbackOrigin, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(future: Any) -> Any:
        with callback_lock.taken():
            before = current()
            _set_current(origin)
            try:
                return callback(future)
            finally:
                _set_current(before)

    return call


@functools.cache
def _watch_futures() -> None:
    """Watches torch's futures by their class, because then() returns new C++ objects."""
    watch_futures(_callback_of, _follow, callback_lock.lend)


def _callback_of(future: Any, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    origin = _origins.get(future)
    return callback if origin is None else _within(origin, callback)


def _follow(future: Any, following: Any) -> None:
    origin = _origins.get(future)
    if origin is not None:
        _origins[following] = origin
