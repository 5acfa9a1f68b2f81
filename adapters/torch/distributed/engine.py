"""How a process group's verbs reach the core: one number after another, the same on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from perseus_like.session import session

from .origin import current
from .work import Finish, PerseusWork

# Its C++ overloads have other names for arguments from release to release; callers pass them by place.
_ProcessGroup: Any = dist.ProcessGroup


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
        self._core = session.core

    def _start(
        self,
        what: str,
        verb: Callable[..., Any],
        *arguments: Any,
        result: Any,
        finish: Finish | None = None,
    ) -> PerseusWork:
        """`verb(name, *arguments)` of the core under the next number.

        Whatever may be wrong with the tensors was found before: a call that raises on one rank must not count there.
        """
        if (origin := current()) is not None:
            name = origin.next_name(self._group_name)
            handle = verb(name, *arguments)
        else:
            with self._numbering:
                name = f"#{self._calls}"
                handle = verb(name, *arguments)
                self._calls += 1
        work = PerseusWork(f"{what} {name}", handle, result, self._timeout, finish, origin=(self._group_name, name))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
