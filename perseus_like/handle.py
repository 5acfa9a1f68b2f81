"""Handles of collectives in flight, and the table of integer handles of Horovod's API."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

R = TypeVar("R")
S = TypeVar("S")
Covariant = TypeVar("Covariant", covariant=True)


class InFlight(Protocol[Covariant]):
    """The interface of an entry of `HandleTable`: a `Pending`, or the core's handle itself."""

    def done(self) -> bool: ...
    def result(self) -> Covariant: ...


class Pending(Generic[R]):
    """One collective in flight: its handle in the core, which keeps the tensors alive, and the maker of its result."""

    __slots__ = ("_finish", "_handle", "_result", "name")

    def __init__(self, name: str, handle: Any, result: Any, finish: Callable[[Any], R] | None = None) -> None:
        """Stores the handle. `finish` makes the result from the completed handle; without it the result is `result`."""
        self.name = name
        self._handle = handle
        self._result = result
        self._finish = finish

    def done(self) -> bool:
        return bool(self._handle.done())

    def result(self) -> R:
        """Waits and returns the result. Raises the error of a collective that failed."""
        self._handle.wait()
        finish = self._finish
        return self._result if finish is None else finish(self._handle)

    def error(self) -> Exception | None:
        """Waits and returns the error of a collective that failed, else None."""
        try:
            self._handle.wait()
        except Exception as error:
            return error
        return None

    def then(self, step: Callable[[R], S]) -> Pending[S]:
        """Returns a handle of the same collective whose result is `step(result)`."""
        finish, result = self._finish, self._result
        if finish is None:
            return Pending(self.name, self._handle, None, lambda _: step(result))
        return Pending(self.name, self._handle, None, lambda done: step(finish(done)))


def results_of(started: Sequence[Pending[R]]) -> list[R]:
    """Waits for all collectives and returns their results, or raises the error of the first that failed.

    It waits for all even after one has failed, since their names and tensors are in use until they are complete.
    """
    errors = [error for pending in started if (error := pending.error()) is not None]
    if errors:
        raise errors[0]
    return [pending.result() for pending in started]


class HandleTable:
    """Integer handles of collectives in flight. All frameworks of the process share one table."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pending: dict[int, InFlight[Any]] = {}

    def add(self, pending: InFlight[Any]) -> int:
        number = next(self._numbers)
        self._pending[number] = pending
        return number

    def poll(self, handle: int) -> bool:
        """Returns True if `synchronize` would not block. ValueError for a handle that is unknown or synchronized."""
        pending = self._pending.get(handle)
        if pending is None:
            raise ValueError(f"handle {handle!r} was never given out, or was synchronized before")
        return pending.done()

    def synchronize(self, handle: int) -> Any:
        """Waits and returns the result. Returns None for a handle that is unknown or was synchronized."""
        pending = self._pending.pop(handle, None)
        return None if pending is None else pending.result()


handles = HandleTable()
