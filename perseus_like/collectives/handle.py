"""Handles of collectives in flight, and the table of integer handles of Horovod's API."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar, overload

from ..session import session

R = TypeVar("R")
S = TypeVar("S")
Covariant = TypeVar("Covariant", covariant=True)


class HandleEntry(Protocol[Covariant]):
    """The interface of an entry of `HandleTable`: a `CollectiveHandle`, or the core's handle itself."""

    def done(self) -> bool: ...
    def result(self) -> Covariant: ...


class CollectiveHandle(Generic[R]):
    """A collective in flight: its handle in the core, which keeps tensors alive, and the function for its result."""

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
        return error_of(self._handle.wait)

    def then(self, step: Callable[[R], S]) -> CollectiveHandle[S]:
        """Returns a handle of the same collective whose result is `step(result)`."""
        finish, result = self._finish, self._result
        if finish is None:
            return CollectiveHandle(self.name, self._handle, None, lambda _: step(result))
        return CollectiveHandle(self.name, self._handle, None, lambda done: step(finish(done)))


def error_of(call: Callable[[], object]) -> Exception | None:
    """Calls, and returns the exception that it raises, if any."""
    try:
        call()
    except Exception as error:
        return error
    return None


def results_of(started: Sequence[CollectiveHandle[R]]) -> list[R]:
    """Waits for all collectives and returns their results, or raises the error of the first that failed.

    It waits for all even after one has failed, since their names and tensors are in use until they are complete.
    """
    errors = [error for pending in started if (error := pending.error()) is not None]
    if errors:
        raise errors[0]
    return [pending.result() for pending in started]


class FailedHandle:
    """Stands for a collective that failed. It keeps no tensors."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def result(self) -> NoReturn:
        raise self._error


class Handle(int, Generic[R]):
    """The integer that stands for a collective in flight. Type checkers know the type R of its result.

    At run time a handle is a plain `int`, because an object for each call costs processor time.
    """


class HandleTable:
    """Integer handles of collectives in flight. All frameworks of the process share one table."""

    def __init__(self) -> None:
        self._numbers: Iterator[Handle[Any]] = itertools.count()  # type: ignore[assignment]
        self._pending: dict[int, HandleEntry[Any]] = {}

    def add(self, pending: HandleEntry[R]) -> Handle[R]:
        number = next(self._numbers)
        self._pending[number] = pending
        return number

    def release_failed(self) -> None:
        """Keeps only the errors of the collectives that have failed. All of them must be complete."""
        for number, pending in list(self._pending.items()):
            if isinstance(pending, FailedHandle):
                continue
            error = pending.error() if isinstance(pending, CollectiveHandle) else error_of(pending.result)
            if error is not None:
                self._pending[number] = FailedHandle(error.with_traceback(None))

    def poll(self, handle: int) -> bool:
        """Returns True if `synchronize` would not block.

        Args:
            handle: the result of an asynchronous collective, such as `allreduce_async`.

        Returns:
            True once the collective is complete or has failed.

        Raises:
            ValueError: the handle is unknown, or was synchronized before.

        Examples:
            >>> handle = hvd.broadcast_async(hvd.empty(3), root_rank=0)
            >>> while not hvd.poll(handle):
            ...     pass  # compute something
            >>> hvd.synchronize(handle).shape[0]
            3
        """
        pending = self._pending.get(handle)
        if pending is None:
            raise ValueError(f"handle {handle!r} was never given out, or was synchronized before")
        return pending.done()

    @overload
    def synchronize(self, handle: Handle[R]) -> R: ...
    @overload
    def synchronize(self, handle: int) -> Any: ...
    def synchronize(self, handle: int) -> Any:
        """Waits until an asynchronous collective is complete, and returns its result.

        Call it once for each handle. A handle keeps its tensors until then, or until `shutdown`, if its collective was
        not complete.

        Args:
            handle: the result of an asynchronous collective, such as `allreduce_async`.

        Returns:
            The result of the collective. None if the handle is unknown, or was synchronized before.

        Raises:
            HorovodInternalError: the collective failed. DisagreementError: the ranks passed different arguments.
                PeerLostError: a rank has ended. ShutDownError: `shutdown` was called before.

        Examples:
            >>> handle = hvd.broadcast_async(hvd.empty(3), root_rank=0)
            >>> hvd.synchronize(handle).shape[0]
            3
        """
        pending = self._pending.pop(handle, None)
        return None if pending is None else pending.result()


handles = HandleTable()
session.on_stop(handles.release_failed)
