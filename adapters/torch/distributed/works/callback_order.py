"""Names collectives that callbacks of futures start, so that the names are the same on all ranks.

Collectives are matched by number, and each rank counts its calls. A callback runs when its work is complete: on one
rank before the next call of the main thread, on another after it. The collectives of a callback are therefore numbered
within the work of its future: the second collective of the callbacks of #5 is #5.1 on all ranks.

Each group in which a work's callbacks communicate has its own numbers, because not all members of the work's group are
members of that group.
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from perseus_like.session import session

from ...compat.futures import watch_futures
from ...native_group import native
from .callback_lock import callback_lock


class _Groups:
    """The groups of this process since the session began, by the core's numbers.

    A group that has ended stays, so that ranks that have not ended theirs yet have the same.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._ranks: dict[int, frozenset[int]] = {}
        # The numbers of works that have had futures, in the order of each group's first one.
        self._futures: dict[int, int] = {}

    def add(self, number: int) -> None:
        if self._generation != session.generation:
            self._generation, self._ranks, self._futures = session.generation, {}, {}
        self._ranks[number] = frozenset(session.core.process_set_ranks(number))

    def has_all_of(self, group: int, other: int) -> bool:
        """Returns whether all members of `other` are members of `group`."""
        return self._ranks.get(other, frozenset()) <= self._ranks.get(group, frozenset())

    def next_future(self, group: int) -> int:
        self._futures[group] = self._futures.get(group, 0) + 1
        return self._futures[group]

    def place(self, group: int, other: int) -> int:
        """Returns the place of a group among the groups that have had futures and lack members of `other`."""
        return [each for each in self._futures if not self.has_all_of(each, other)].index(group)


groups = _Groups()


class CallbackOrigin:
    """The work whose future has callbacks: its group and name, and the numbers of collectives that these started."""

    def __init__(self, group_name: str, group: int, name: str) -> None:
        self._group_name = group_name
        self._group = group
        self._name = name
        self._future = groups.next_future(group)
        self._counters: dict[int, itertools.count[int]] = collections.defaultdict(itertools.count)

    def next_name(self, group: int) -> str:
        """Returns the name of the next collective that the callbacks start in a group."""
        return f"{self._name_in(group)}.{next(self._counters[group])}"

    def _name_in(self, group: int) -> str:
        if group == self._group:
            return self._name
        if groups.has_all_of(self._group, group):
            return f"{self._group_name}:{self._name}"
        # The works of the other members are of other groups: for instance, each host has a group, and the callbacks
        # communicate in a group of several hosts. These groups have other names, and may have had more collectives. The
        # futures of such works are made in the same order on all members.
        name = self._name if "." in self._name else f"future {self._future}"
        return f"group {groups.place(self._group, group)}:{name}"


_origins: weakref.WeakKeyDictionary[Any, CallbackOrigin] = weakref.WeakKeyDictionary()


class _OfThread(threading.local):
    origin: CallbackOrigin | None = None


running = _OfThread()


def current() -> CallbackOrigin | None:
    """Returns the origin of the callback that runs on this thread, or None."""
    return running.origin


def _set_current(origin: CallbackOrigin | None) -> None:
    running.origin = origin
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
