"""How a process group's verbs reach the core: one number after another, the same on all ranks."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch.distributed as dist

from perseus_like.session import session

from .callback_order import current
from .work import Asked, Finish, PerseusWork

# Its C++ overloads have other names for arguments from release to release; callers pass them by place.
_ProcessGroup: Any = dist.ProcessGroup
_LONGEST_MISTAKE = 1000  # of its text, that travels
C = TypeVar("C", bound=type)


class Engine(_ProcessGroup):  # type: ignore[misc]
    """What the verbs share. Collectives of a group are numbered: ranks whose n-th calls differ are told so."""

    def __init__(self, number: int, rank: int, size: int, timeout: float) -> None:
        super().__init__(rank, size)
        self._number = number
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._group_name = ""
        self._calls = 0
        self._coalesced: list[PerseusWork] | None = None  # inside a coalescing manager: its works
        self._numbering = threading.Lock()
        self._plans: dict[Any, Any] = {}  # of reductions, by operation and type
        self._core = session.core

    @cached_property
    def job_ranks(self) -> list[int]:
        """The members by their ranks in the job, in the group's order."""
        return list(session.core.process_set_ranks(self._number))

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
        """`verb((name, call), *arguments)` of the core under the next number.

        `call`: what the ranks must agree on beside the verb's own arguments. `what`: a shorter word for texts.
        """
        if (origin := current()) is not None:
            name = origin.next_name(self._group_name)
            handle = self._submit(name, call, verb, arguments, options)
        else:
            with self._numbering:
                name = f"#{self._calls}"
                self._calls += 1
                handle = self._submit(name, call, verb, arguments, options)
        asked = Asked(self._group_name, self._number, name)
        work = PerseusWork(f"{what or call} {name}", handle, result, self._timeout, finish, asked=asked)
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
        """Tells the others, who wait for this rank under `name`, that it cannot take part."""
        error.told = True  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            self._core.barrier((name, f"{call}, which it cannot: {str(error)[:_LONGEST_MISTAKE]}"), self._number)

    def _confess_early(self, call: str, error: BaseException) -> None:
        if getattr(error, "told", False):
            return
        if (origin := current()) is not None:
            self._report_failure(origin.next_name(self._group_name), call, error)
            return
        with self._numbering:
            self._calls += 1
            self._report_failure(f"#{self._calls - 1}", call, error)


def confessing(**calls: str) -> Callable[[C], C]:
    """Class decorator, by method what its call is named: where one raises, the other ranks fail, too, and are told why.

    A mistake of one rank would else leave them waiting, and its next call would meet the one that they wait for.
    """

    def decorate(cls: C) -> C:
        for method, call in calls.items():
            setattr(cls, method, _confessing(getattr(cls, method), call))
        return cls

    return decorate


def _confessing(method: Callable[..., Any], call: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def attempt(self: Engine, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            self._confess_early(call, error)
            raise

    return attempt
