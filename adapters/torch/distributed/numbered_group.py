"""Submits the collectives of a process group to the core, numbered in the same way on all ranks."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from perseus_like.errors import CLASSES
from perseus_like.session import session
from perseus_like.tables import ErrorKind

from ..compat import dynamo
from ..compat.tensor_parts import awaited, is_fake
from ..native_group import native
from .works import MARGIN_SECONDS, Finish, PerseusWork, SubmittedRequest
from .works.callback_order import current, groups, running

# The type is Any, because the names of the overloads' arguments differ between releases. Callers pass them by place.
_ProcessGroup: Any = dist.ProcessGroup
_LONGEST_ERROR = 1000  # characters of an error text that other ranks receive
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_SEQUENCES = (list, tuple)
_NO_OPTIONS = (Tensor, list, tuple, int)
_NO_TIME = timedelta(0)
F = TypeVar("F", bound=Callable[..., Any])


def root_of(opts: Any, root: int = 0, **_: Any) -> int:
    """Returns the root of a call, which torch gives in options, as a number, or as `root`."""
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", root))


class NumberedGroup(_ProcessGroup):  # type: ignore[misc]
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
        origin = running.origin
        name = f"#{self._next_call()}" if origin is None else origin.next_name(self._number)
        try:
            handle = verb((name, call), *arguments, **options)
        except Exception as error:
            self._report_failure(name, call, error)
            raise
        request = SubmittedRequest(self._group_name, self._number, name)
        work = PerseusWork(f"{what or call} {name}", handle, result, self._timeout, finish, request=request)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _begun(self, work: PerseusWork) -> PerseusWork:
        """Returns the work. A coalescing manager around the call waits for it."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

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


def collective(called: str | None = None, tensors: int = 0) -> Callable[[F], F]:
    """Decorator of a method that torch calls, from C++ or in compiled code. Returns the decorator.

    - The call runs without Dynamo.
    - An AsyncCollectiveTensor stands for its result. A call with a FakeTensor communicates nothing: it does what torch
      does for groups of every backend.
    - The work has the time limit that the caller gives, in torch's options or as `timeout`.
    - If the call raises, the other ranks fail with the reason. Otherwise they would wait, and would match this rank's
      next call to theirs.

    Args:
        called: the users' name of the collective. None for a message, whose errors concern this rank only.
        tensors: the place of the argument with the tensors, whose device decides which group of several executes it.
    """

    def decorate(method: F) -> F:
        name = method.__name__

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, timeout: timedelta | None = None, **options: Any) -> Any:
            dynamo_before = dynamo.pause(None)
            reported = called
            try:
                if not (_all_plain(arguments) if not options else _all_plain((*arguments, *options.values()))):
                    arguments = tuple(_unwrapped(each) for each in arguments)
                    options = {key: _unwrapped(each) for key, each in options.items()}
                    if _any_fake((*arguments, *options.values())):
                        reported = None  # no other rank takes part in the call
                        limit = {} if timeout is None else {"timeout": timeout}
                        return getattr(_ProcessGroup(self.rank(), self.size()), name)(*arguments, **options, **limit)
                if arguments and isinstance(arguments[-1], timedelta):
                    *arguments, timeout = arguments  # type: ignore[assignment]
                if timeout is None:
                    given = options.get("opts", arguments[-1] if arguments else None)
                    timeout = None if isinstance(given, _NO_OPTIONS) else getattr(given, "timeout", None)
                is_limited = timeout is not None and timeout > _NO_TIME  # TypeError before the call is submitted
                work = method(self, *arguments, **options)
                if is_limited:
                    work.limit_to(timeout)
                return work
            except Exception as error:
                if reported is not None:
                    self._report_early_failure(reported, error)
                raise
            finally:
                dynamo.pause(dynamo_before)

        untraced: Any = dynamo.untraced(call)
        untraced.tensors = tensors
        return untraced  # type: ignore[no-any-return]

    return decorate


def delegates(cls: type, delegate: Callable[[str, int], Callable[..., Any]]) -> type:
    """Returns a class with the collectives and messages of `cls`: each is `delegate(name, place of its tensors)`."""
    members = [member for base in cls.__mro__ for member in vars(base).items() if hasattr(member[1], "tensors")]
    return type("Delegates", (), {name: delegate(name, member.tensors) for name, member in members})


def _all_plain(arguments: Iterable[Any]) -> bool:
    """Returns whether no tensor of a subclass is among the arguments and in their lists."""
    for each in arguments:
        kind = type(each)
        if kind in _SEQUENCES:
            if not (_PLAIN.issuperset(map(type, each)) or _all_plain(each)):
                return False
        elif kind not in _PLAIN and isinstance(each, Tensor):
            return False
    return True


def _unwrapped(given: Any) -> Any:
    if type(given) in _SEQUENCES:
        return type(given)(_unwrapped(each) for each in given)
    return awaited(given) if isinstance(given, torch.Tensor) else given


def _any_fake(arguments: Iterable[Any]) -> bool:
    return any(
        _any_fake(each) if type(each) in _SEQUENCES else isinstance(each, torch.Tensor) and is_fake(each)
        for each in arguments
    )
