"""Submits the collectives of a process group to the core, numbered in the same way on all ranks."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch.distributed as dist

from perseus_like.errors import CLASSES
from perseus_like.session import session
from perseus_like.tables import ErrorKind

from ..native_group import native
from .callback_order import current, groups
from .work import MARGIN_SECONDS, Finish, PerseusWork, SubmittedRequest

# The type is Any, because the names of the overloads' arguments differ between releases. Callers pass them by place.
_ProcessGroup: Any = dist.ProcessGroup
_LONGEST_ERROR = 1000  # characters of an error text that other ranks receive
C = TypeVar("C", bound=type)


def root_of(opts: Any, root: int = 0, **_: Any) -> int:
    """Returns the root of a call, which torch gives in options, as a number, or as `root`."""
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", root))


class Engine(_ProcessGroup):  # type: ignore[misc]
    """The base class of the verbs. Collectives of a group are numbered; if the n-th calls differ, all ranks fail."""

    def __init__(self, number: int, rank: int, size: int, timeout: float) -> None:
        if native is None:
            super().__init__(rank, size)
        else:
            native.init(self, rank, size)
            native.set_members(self, weakref.ref(self), number)
            native.set_limit(self, timeout + MARGIN_SECONDS)
        self._number = number
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._calls = 0
        self._coalesced: list[PerseusWork] | None = None  # the works inside a coalescing manager
        self._numbering = threading.Lock()  # guards _calls
        self._plans: dict[Any, Any] = {}  # plans of reductions, by operation and dtype
        self._core = session.core
        groups.add(number)

    @cached_property
    def job_ranks(self) -> list[int]:
        """Returns the members' ranks in the job, in the group's order."""
        return list(session.core.process_set_ranks(self._number))

    def _next_call(self) -> int:
        """Returns the number of this call: the number of earlier calls."""
        if native is not None:
            return int(native.next_call(self))
        with self._numbering:
            self._calls += 1
            return self._calls - 1

    def _start(
        self,
        call: str,
        verb: Callable[..., Any],
        *arguments: Any,
        result: Any,
        finish: Finish | None = None,
        what: str | None = None,
        **options: Any,
    ) -> PerseusWork:
        """Calls `verb((name, call), *arguments)` of the core, with the next number as the name.

        The ranks must agree on `call`, as on the verb's own arguments. `what` is a shorter form of it for texts.
        """
        if (origin := current()) is not None:
            name = origin.next_name(self._number)
            handle = self._submit(name, call, verb, arguments, options)
        else:
            name = f"#{self._next_call()}"
            handle = self._submit(name, call, verb, arguments, options)
        request = SubmittedRequest(self._group_name, self._number, name)
        work = PerseusWork(f"{what or call} {name}", handle, result, self._timeout, finish, request=request)
        return self._begun(work)

    def _begun(self, work: PerseusWork) -> PerseusWork:
        """Returns the work. A coalescing manager around the call waits for it."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _submit(
        self, name: str, call: str, verb: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        try:
            return verb((name, call), *arguments, **options)
        except Exception as error:
            self._report_failure(name, call, error)
            raise

    def _report_failure(self, name: str, call: str, error: BaseException) -> None:
        """Tells the other ranks, which wait for `name`, that this rank cannot take part."""
        error.is_reported = True  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            why = str(error).removeprefix(f"{call.partition(' ')[0]}: ")
            self._core.barrier((name, f"{call}, which it cannot: {why[:_LONGEST_ERROR]}"), self._number)

    def _reject(self, number: int, kind: int, text: str) -> None:
        """Raises the error of an all_reduce that the core has not accepted from C++."""
        error = CLASSES[ErrorKind(kind).name](text)
        self._report_failure(f"#{number}", "all_reduce", error)
        raise error

    def _report_early_failure(self, call: str, error: BaseException) -> None:
        """Reports an error of a call that was not submitted, unless it is reported already."""
        if getattr(error, "is_reported", False):
            return
        if (origin := current()) is not None:
            self._report_failure(origin.next_name(self._number), call, error)
            return
        self._report_failure(f"#{self._next_call()}", call, error)


def reporting_failures(**calls: str) -> Callable[[C], C]:
    """Class decorator: if one of these methods raises, the other ranks fail with the reason. Calls are named by method.

    Without it, a wrong call on one rank would leave the others waiting, and its next call would be matched to theirs.
    """

    def decorate(cls: C) -> C:
        for method, call in calls.items():
            setattr(cls, method, _reporting_failure(getattr(cls, method), call))
        return cls

    return decorate


def _reporting_failure(method: Callable[..., Any], call: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def attempt(self: Engine, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            self._report_early_failure(call, error)
            raise

    return attempt
