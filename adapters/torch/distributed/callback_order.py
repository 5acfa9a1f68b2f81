"""Which work a callback belongs to, so that what callbacks start has the same name on all ranks.

Collectives are matched by number, and numbers are counted by each rank as it calls. A callback runs when its work is
complete: on one rank before the next call of the main thread, on another after it. What it starts is therefore numbered
within the work whose future it hangs on: the second collective of the callbacks of #5 is #5.1 on all ranks.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..compat.futures import watch_futures
from .callback_lock import callback_lock


class CallbackOrigin:
    """The work that callbacks hang on: its group and name, and how many collectives they have started."""

    def __init__(self, group: str, name: str) -> None:
        self._group = group
        self._name = name
        self._counter = itertools.count()

    def next_name(self, group: str) -> str:
        """For a collective of `group`, in which other works may have the same number."""
        of = self._name if group == self._group else f"{self._group}:{self._name}"
        return f"{of}.{next(self._counter)}"


_origins: weakref.WeakKeyDictionary[Any, CallbackOrigin] = weakref.WeakKeyDictionary()
_running = threading.local()


def current() -> CallbackOrigin | None:
    """Of the callback that runs on this thread, if one does."""
    return getattr(_running, "origin", None)


def remember(future: Any, origin: CallbackOrigin) -> None:
    """What hangs on `future` has this origin, and what hangs on that, and so on."""
    _watch_futures()
    _origins[future] = origin


def _within(origin: CallbackOrigin, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(future: Any) -> Any:
        with callback_lock.taken():
            before, _running.origin = current(), origin
            try:
                return callback(future)
            finally:
                _running.origin = before

    return call


@functools.cache
def _watch_futures() -> None:
    """torch's futures are objects of C++ that then() makes anew, so their class has to tell us of each."""
    watch_futures(_callback_of, _follow, callback_lock.lend)


def _callback_of(future: Any, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    origin = _origins.get(future)
    return callback if origin is None else _within(origin, callback)


def _follow(future: Any, following: Any) -> None:
    origin = _origins.get(future)
    if origin is not None:
        _origins[following] = origin
