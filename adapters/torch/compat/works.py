"""Works that C++ holds."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import torch.distributed as dist
from torch.futures import Future

_ProcessGroup: Any = dist.ProcessGroup  # its overloads differ between releases
_MOST_KEPT = 1000
_kept: deque[Any] = deque(maxlen=_MOST_KEPT)


def keep_alive(work: Any) -> None:
    """Keeps the Python part of a work alive if C++ does not do so.

    Relies on: a C++ caller of a process group in Python reaching the methods of the work that it is given. torch 2.1
    drops the work's Python part, and its base class then waits without end.
    Tried with: all; the last 1000 works of a process are kept with torch 2.1, and none with later releases.
    Notices: `_loses_works` calls through C++ and looks.
    Lost then: torch's DistributedDataParallel waits without end.
    """
    if _loses_works():
        _kept.append(work)


@functools.cache
def _loses_works() -> bool:
    class Work(dist.Work):
        def get_future(self) -> Future[list[Any]]:
            future: Future[list[Any]] = Future()
            future.set_result([])
            return future

    class Group(_ProcessGroup):  # type: ignore[misc]
        def barrier(self, *_: Any) -> Any:
            return Work()

    # The class's own method is C++, which calls the one above.
    work = _ProcessGroup.barrier(Group(0, 1), dist.BarrierOptions())
    try:
        work.get_future()
    except RuntimeError:
        return True
    return False
