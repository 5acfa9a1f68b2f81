"""Works that C++ holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch.distributed as dist
from torch.futures import Future

_ProcessGroup: Any = dist.ProcessGroup  # its overloads differ between releases
_MOST_KEPT = 1000
_lock = threading.Lock()  # guards _kept
_kept: OrderedDict[int, Any] = OrderedDict()  # works by identity, oldest first


def keep_alive(work: Any) -> None:
    """Keeps the Python part of a work alive until `let_go`. For releases of torch whose C++ does not: `LOSES_WORKS`.

    Relies on: a C++ caller of a process group in Python reaching the methods of the work that it is given. torch 2.1
    drops the work's Python part, and its base class then waits without end.
    Tried with: all. With torch 2.1 the works that nobody has waited for are kept, the last 1000 of a process; with
    later releases none.
    Notices: `LOSES_WORKS`, which calls through C++ and looks.
    Lost then: torch's DistributedDataParallel waits without end.
    """
    with _lock:
        _kept[id(work)] = work
        if len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)


def let_go(work: Any) -> None:
    """Ends `keep_alive`, and with it the use of the work's tensors: the work was waited for.

    Relies on: C++ callers not using a work after `wait`, or after the future of it is complete, apart from the one
    that `process_groups.keep_awaited_works` knows of.
    Tried with: all.
    Notices: nothing; `keep_alive` has the probe.
    Lost then: torch 2.1 waits without end where C++ waits for a work twice.
    """
    with _lock:
        _kept.pop(id(work), None)


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


LOSES_WORKS = _loses_works()
